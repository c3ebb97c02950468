"""Definition of the fields of Params, and access to nested values by paths."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from lingvo_pipe.core import errors
from lingvo_pipe.core.errors import Words
from lingvo_pipe.core.paths import Name, Step, format_path
from lingvo_pipe.hyperparams.frozen_values import copy_value

Steps = tuple[Any, ...]  # Each is a Step; the owner of the last determines its kind.
Undo = Callable[[], None]

# What errors say about attributes that only Lingvo's Params have.
_HINTS = {"ToProto": "Call ToText, whose text FromText reads."}


@dataclass
class Field:
    """One param. `default` is a copy, so edits inside `value` do not change it."""

    value: Any
    default: Any
    description: str


class _ObservedField(Field):
    def __init__(self, field: Field, on_read: Callable[[], None]) -> None:
        self._on_read = on_read
        super().__init__(field.value, field.default, field.description)

    @property
    def value(self) -> Any:
        self._on_read()
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return Field, (self._value, self.default, self.description)


class Fields:
    """Base class of Params, which defines fields and looks them up by name."""

    _fields: dict[str, Field]
    _frozen: bool

    # Params and InstantiableParams, set by their module. Reading texts creates them.
    _plain: ClassVar[type[Any]]
    _instantiable: ClassVar[type[Any]]

    def __init__(self) -> None:
        self.__dict__.update(_fields={}, _frozen=False)

    def Define(self, name: str, default: Any, description: str) -> None:
        """Defines a param with a default. The description gives its meaning and unit.

        The name has lower-case letters, digits and underscores, no digit first.

        Raises:
            AttributeError: if the name is already defined.
            TypeError: if these Params are frozen, or the description is not a string.
            ValueError: if `name` is not valid.
        """
        self._CheckMutable("define", name)
        is_name = isinstance(name, str) and re.fullmatch("[a-z_][a-z0-9_]*", name)
        if not is_name or (name[0] == "_" and name in object.__dir__(self)):
            raise errors.UserNameError(
                path="name of a param",
                expected="lower-case letters, digits and underscores, no digit first, "
                "and no attribute of Params",
                got=name,
            )
        if not isinstance(description, str):
            raise errors.UserTypeError(
                path=f"description of {name}", expected="a string", got=description
            )
        if name in self._fields:
            hint = "Set its value, or Delete it first."
            got = Words(f"a param described as {self._fields[name].description!r}")
            raise errors.UserAttributeError(
                path=name,
                expected="a name that is not already defined",
                got=got,
                hint=hint,
            )
        self._fields[name] = Field(default, copy_value(default), description)

    def ObserveReads(self, name: str, on_read: Callable[[], None]) -> None:
        """Calls `on_read` at every read of a param. Reads of a copy do not count."""
        self._fields[name] = _ObservedField(self._fields[name], on_read)

    def GetKeys(self) -> list[str]:
        """Returns the names, in the order of definition."""
        return list(self._fields)

    def IterParams(self) -> Iterator[tuple[str, Any]]:
        """Yields (name, value) of each param, in the order of definition."""
        for name, field in self._fields.items():
            yield name, field.value

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __len__(self) -> int:
        return len(self._fields)

    def __bool__(self) -> bool:
        return True  # Params without fields are true too: `if p.cell_tpl:`.

    def _CheckMutable(self, verb: str, *names: str) -> None:
        if self._frozen:
            path = ", ".join(map(str, names))
            raise errors.UserTypeError(
                f"Cannot {verb} {path}: these Params are frozen.",
                path=path,
                hint="Edit a copy: params.Copy().",
            )

    def _Lookup(self, steps: tuple[Step, ...]) -> Field:
        """Returns the field that the last step names. Errors show the whole path."""
        name = steps[-1].name if isinstance(steps[-1], Name) else None
        if name in self._fields:
            return self._fields[name]
        # The class that the Params configure may know what is meant.
        cls = self._fields["cls"].value if "cls" in self._fields else None
        hint = {**_HINTS, **getattr(cls, "PARAM_HINTS", {})}.get(name, "")
        raise errors.UserAttributeError(
            path=format_path(steps),
            expected=f"a defined param ({', '.join(sorted(self._fields)) or 'none'})",
            got=name,
            names=() if hint else self._fields,
            hint=hint,
        )


# ---- Access by path. Functions that change a value return their undo function.


def resolve(root: Fields, steps: Steps) -> Any:
    """Returns the value that the path `steps` leads to, starting at `root`."""
    value: Any = root
    for depth in range(1, len(steps) + 1):
        value = _child(value, steps[:depth])
    return value


def assign(root: Fields, steps: Steps, new: Any) -> Undo:
    """Sets the value that the path `steps` leads to, starting at `root`."""
    owner = resolve(root, steps[:-1])
    old = _child(owner, steps)
    if isinstance(owner, Fields):
        owner._CheckMutable("set", format_path(steps))
        field = owner._Lookup(steps)
        field.value = new
        return lambda: setattr(field, "value", old)
    if isinstance(owner, tuple):
        raise errors.UserTypeError(
            path=format_path(steps),
            expected="an item that can be set",
            got=Words("an item of a tuple"),
            hint=f"Set the whole {format_path(steps[:-1])}.",
        )
    key = steps[-1].key
    owner[key] = new
    return lambda: owner.__setitem__(key, old)


def change_all(change: Callable[[Any], Undo], items: Iterable[Any]) -> None:
    """Calls `change` for each item. If some calls fail, undoes the other changes.

    Raises:
        UserError: a single error about all calls that raised a UserError.
    """
    problems: list[errors.UserError] = []
    with contextlib.ExitStack() as undo:
        for item in items:
            try:
                undo.callback(change(item))
            except errors.UserError as problem:
                problems.append(problem)
        if not problems:
            undo.pop_all()
            return
        if len(problems) == 1:
            raise problems[0]
        lines = [f"{len(problems)} problems; nothing was changed:", *map(str, problems)]
        # The first problem decides the type, so that `except AttributeError` works.
        error = type(problems[0])("\n  ".join(lines))
        error.problems = tuple(problems)
        raise error from problems[0]


def delete(root: Fields, steps: Steps) -> Undo:
    """Removes the param that the path `steps` leads to, starting at `root`."""
    owner = owner_of(root, steps)
    owner._CheckMutable("delete", format_path(steps))
    before = dict(owner._fields)
    del owner._fields[steps[-1].name]

    def undo() -> None:
        owner._fields.clear()
        owner._fields.update(before)

    return undo


def owner_of(root: Fields, steps: Steps) -> Fields:
    """Returns the Params that have the param at the end of the path `steps`.

    Raises:
        ValueError: if the path ends in an item of a list, tuple or dict.
    """
    resolve(root, steps)
    owner = resolve(root, steps[:-1])
    if not isinstance(owner, Fields):
        hint = f"Name the whole {format_path(steps[:-1])}."
        got = Words(f"an item of a {type(owner).__name__}")
        raise errors.UserValueError(
            path=format_path(steps), expected="a param", got=got, hint=hint
        )
    return owner


def _child(owner: Any, steps: Steps) -> Any:
    step = steps[-1]
    if isinstance(step, Name) and isinstance(owner, Fields):
        return owner._Lookup(steps).value
    if isinstance(step, Name) or not isinstance(owner, (list, tuple, dict)):
        holder = "Params" if isinstance(step, Name) else "a list, tuple or dict"
        raise errors.UserPathError(
            path=format_path(steps[:-1]),
            expected=f"{holder} to reach {format_path(steps)}",
            got=Words("Params") if isinstance(owner, Fields) else owner,
        )
    known = owner if isinstance(owner, dict) else range(-len(owner), len(owner))
    if step.key in known:
        return owner[step.key]
    keys = f" ({', '.join(map(repr, owner))})" if isinstance(owner, dict) else ""
    raise errors.UserAttributeError(
        path=format_path(steps),
        expected=f"an item of a {type(owner).__name__} of {len(owner)}{keys}",
        got=step.key,
        names=[key for key in known if isinstance(key, str)],
    )
