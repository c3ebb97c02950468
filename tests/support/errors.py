"""Errors for users, matched by their fields and not by their words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserError, UserValueError


@contextlib.contextmanager
def fails(
    kind: type[UserError] = UserValueError, **fields: Any
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expects an error of a kind within, with these values of its fields.

    Args:
        kind: the error's type.
        **fields: the error's `path`, `expected`, `got` or `hint`.
    """
    with pytest.raises(kind) as info:
        yield info
    assert {name: getattr(info.value, name) for name in fields} == fields
