"""Lists and dicts that refuse to change: what Freeze makes of plain ones."""

from __future__ import annotations

from typing import Any


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    kind = "list" if isinstance(self, list) else "dict"
    raise TypeError(
        f"A {kind} in frozen Params must not be changed; tried to change one. "
        "Edit a copy of the Params: params.Copy()."
    )


class FrozenList(list):
    """A list that refuses to change; equal to the plain list."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)

    def __copy__(self) -> list:
        return list(self)


class FrozenDict(dict):
    """A dict that refuses to change; equal to the plain dict."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = setdefault = pop = popitem = clear = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __copy__(self) -> dict:
        return dict(self)
