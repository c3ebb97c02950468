"""Copies values from one Params to another."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from lingvo_pipe.hyperparams.params import Params
from lingvo_pipe.hyperparams.values import copy_value

ParamsT = TypeVar("ParamsT", bound=Params)


def CopyFieldsTo(
    from_p: Params,
    to_p: ParamsT,
    skip: Collection[str] | None = None,
    ignore_unknown_keys: bool = False,
) -> ParamsT:
    """Sets the params of `to_p` to deep copies of the values in `from_p`.

    `cls` is never copied, so that `to_p` still makes what it made.

    Args:
      from_p: Where the values come from.
      to_p: Where they go.
      skip: Names to leave out.
      ignore_unknown_keys: Whether to leave out what `to_p` does not define.

    Returns:
      `to_p`.

    Raises:
      AttributeError: `to_p` does not define a name; nothing is copied.
    """
    names = [
        name for name in from_p.GetKeys() if name in to_p or not ignore_unknown_keys
    ]
    return _copy(from_p, to_p, names, skip)


def CopyFieldsSubsetTo(
    from_p: Params, to_p: ParamsT, skip: Collection[str] | None = None
) -> ParamsT:
    """Sets every param of `to_p` to a deep copy of its value in `from_p`.

    `cls` is never copied.

    Args:
      from_p: Where the values come from; may define more than `to_p`.
      to_p: Where they go.
      skip: Names to leave out.

    Returns:
      `to_p`.

    Raises:
      AttributeError: `from_p` does not define a name; nothing is copied.
    """
    return _copy(from_p, to_p, to_p.GetKeys(), skip)


def _copy(
    from_p: Params, to_p: ParamsT, names: list[str], skip: Collection[str] | None
) -> ParamsT:
    left_out = {"cls", *(skip or ())}
    to_p.Set(**{n: copy_value(from_p.Get(n)) for n in names if n not in left_out})
    return to_p
