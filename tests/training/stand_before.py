"""Has something happen before each call of a function, such as one that writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def stand_before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[[], None]
) -> None:
    """Has `note` called before each call of `owner.name`, which it may prevent."""
    call = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return call(*args, **kwargs)

    monkeypatch.setattr(owner, name, noted)
