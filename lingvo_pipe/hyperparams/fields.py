"""The names of a Params: their definition and how they are looked up."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lingvo_pipe.hyperparams.path import Name, Step, format_path
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.hyperparams.values import copy_value


@dataclass
class Field:
    """One param. `default` is never handed out, so it stays what was defined."""

    value: Any
    default: Any
    description: str


class Fields:
    """Fields by name: what paths, visits and texts know of Params."""

    _fields: dict[str, Field]
    _frozen: bool

    def __init__(self) -> None:
        self.__dict__.update(_fields={}, _frozen=False)

    def Define(self, name: str, default: Any, description: str) -> None:
        """Defines a param.

        Args:
          name: Lower-case letters, digits and underscores, a letter first.
          default: Its value until it is set; may be None.
          description: What it is, with its unit.

        Raises:
          AttributeError: It is already defined.
          TypeError: These Params are frozen, or the description is no string.
          ValueError: `name` is no name.
        """
        self._CheckMutable(f"define {name!r}")
        is_name = isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name)
        if not is_name or keyword.iskeyword(name):
            raise ValueError(
                "A param's name must be lower-case letters, digits and underscores, "
                f"start with a letter and be no word of Python's; got {name!r}."
            )
        if not isinstance(description, str):
            raise TypeError(
                f"The description of param {name!r} must be a string; "
                f"got {description!r}."
            )
        if name in self._fields:
            raise AttributeError(
                f"A param must be defined once; {name!r} is already defined as "
                f"{self._fields[name].description!r}. Set its value, or Delete it "
                "first."
            )
        self._fields[name] = Field(default, copy_value(default), description)

    def GetKeys(self) -> list[str]:
        """Returns the names, in the order of definition."""
        return list(self._fields)

    def IterParams(self) -> Iterator[tuple[str, Any]]:
        """Yields (name, value), in the order of definition."""
        for name, field in self._fields.items():
            yield name, field.value

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __len__(self) -> int:
        return len(self._fields)

    def __bool__(self) -> bool:
        return True  # Params without names are still there: `if p.cell_tpl:`.

    def _CheckMutable(self, attempt: str) -> None:
        if self._frozen:
            raise TypeError(
                f"Frozen Params must not be changed; tried to {attempt}. "
                "Edit a copy: params.Copy()."
            )

    def _Lookup(self, steps: tuple[Step, ...]) -> Field:
        """Returns the field of the last step; the others only say where this is."""
        name = steps[-1].name if isinstance(steps[-1], Name) else None
        if name in self._fields:
            return self._fields[name]
        where = format_path(steps[:-1])
        owner = f"{where!r} has" if where else "these Params have"
        known = ", ".join(sorted(self._fields)) or "nothing"
        raise AttributeError(
            f"{format_path(steps)!r} must be a defined param; {owner} no {name!r}."
            f"{did_you_mean(str(name), self._fields)} Defined: {known}."
        )
