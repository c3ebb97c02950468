"""Dataclasses and named tuples in texts: `{'a': 1, 'b': float32}`, as in Lingvo's.

The text names no class: the value that is replaced has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean


def record_fields(value: Any) -> dict[str, Any] | None:
    """Returns the fields of a dataclass or named tuple by name; else None."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: getattr(value, name) for name in names}
    return None


def replace_fields(record: Any, values: Mapping[str, Any]) -> Any:
    """Returns a copy of a dataclass or named tuple with other values of some fields.

    Raises ValueError for a name that is not a field.
    """
    fields = record_fields(record) or {}
    for name in values:
        if name not in fields:
            raise UserValueError(
                f"a {type(record).__name__} has the fields {', '.join(fields)}; got "
                f"{name!r}.{did_you_mean(str(name), fields)}"
            )
    replace = dataclasses.replace if dataclasses.is_dataclass(record) else None
    return replace(record, **values) if replace else record._replace(**values)
