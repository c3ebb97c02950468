"""The fields of a Params: their definition, and paths from them to nested values."""

import contextlib
import keyword
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from lingvo_pipe.core import errors
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.core.paths import Item, Name, Step, format_path
from lingvo_pipe.hyperparams.frozen_values import copy_value

Steps = tuple[Any, ...]  # Each a Step; the owner of the last one determines its kind.
Undo = Callable[[], None]

# Errors that a user's mistake raises; any other is a bug and passes through.
_MISTAKES: dict[type[Exception], type[Exception]] = {
    AttributeError: errors.UserAttributeError,
    TypeError: errors.UserTypeError,
    ValueError: errors.UserValueError,
}


@dataclass
class Field:
    """One param. `default` is never shared, so it stays as defined."""

    value: Any
    default: Any
    description: str


class _ObservedField(Field):
    """A field that calls a function whenever its value is read."""

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
    """Fields by name: the part of Params that paths, walks and texts need."""

    _fields: dict[str, Field]
    _frozen: bool

    # Params and InstantiableParams. Texts create such objects; their module sets these.
    _plain: ClassVar[type[Any]]
    _instantiable: ClassVar[type[Any]]

    def __init__(self) -> None:
        self.__dict__.update(_fields={}, _frozen=False)

    def Define(self, name: str, default: Any, description: str) -> None:
        """Defines a param with a default and its meaning, with its unit.

        The name has lower-case letters, digits and underscores, a letter first.

        Raises:
            AttributeError: if it is defined.
            TypeError: if these Params are frozen, or the description is not a string.
            ValueError: if `name` is not valid.
        """
        self._CheckMutable(f"define {name!r}")
        is_name = isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name)
        if not is_name or keyword.iskeyword(name):
            raise errors.UserNameError(
                "A param's name must be lower-case letters, digits and underscores, "
                f"start with a letter and be no keyword of Python; got {name!r}."
            )
        if not isinstance(description, str):
            raise errors.UserTypeError(
                f"The description of param {name!r}: expected a string, got "
                f"{description!r}."
            )
        if name in self._fields:
            raise errors.UserAttributeError(
                f"Param {name!r} is already defined: "
                f"{self._fields[name].description!r}. Set its value, or Delete it "
                "first."
            )
        self._fields[name] = Field(default, copy_value(default), description)

    def ObserveReads(self, name: str, on_read: Callable[[], None]) -> None:
        """Calls `on_read` at every read of a param's value, except in copies."""
        self._fields[name] = _ObservedField(self._fields[name], on_read)

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
        return True  # Params without fields are true too: `if p.cell_tpl:`.

    def _CheckMutable(self, attempt: str) -> None:
        if self._frozen:
            raise errors.UserTypeError(
                f"Cannot {attempt}: these Params are frozen. Edit a copy: "
                "params.Copy()."
            )

    def _Lookup(self, steps: tuple[Step, ...]) -> Field:
        """Returns the field of the last step.

        The other steps are for the error's text.
        """
        name = steps[-1].name if isinstance(steps[-1], Name) else None
        if name in self._fields:
            return self._fields[name]
        path = format_path(steps[:-1])
        owner = f"{path!r} has" if path else "these Params have"
        names = ", ".join(sorted(self._fields)) or "nothing"
        # The class that the Params configure may know what is meant.
        cls = self._fields["cls"].value if "cls" in self._fields else None
        hint = getattr(cls, "PARAM_HINTS", {}).get(name)
        near = f" {hint}" if hint else did_you_mean(str(name), self._fields)
        raise errors.UserAttributeError(
            f"{format_path(steps)!r} must be a defined param; {owner} no {name!r}."
            f"{near} Defined: {names}."
        )


# ---- Access by path. Functions that change a value return their undo function.


def resolve(root: Fields, steps: Steps) -> Any:
    """Returns the value at `steps` from `root`."""
    value: Any = root
    for depth in range(1, len(steps) + 1):
        value = _child(value, steps[:depth])
    return value


def assign(root: Fields, steps: Steps, new: Any) -> Undo:
    """Sets the value at `steps`."""
    owner = resolve(root, steps[:-1])
    old = _child(owner, steps)
    if isinstance(owner, Fields):
        if owner._frozen:
            owner._CheckMutable(f"set {format_path(steps)!r}")
        field = owner._Lookup(steps)
        field.value = new
        return lambda: setattr(field, "value", old)
    if isinstance(owner, tuple):
        raise errors.UserTypeError(
            f"{format_path(steps)!r} is an item of a tuple, which cannot be set. Set "
            f"the whole {format_path(steps[:-1])!r}."
        )
    key = steps[-1].key
    owner[key] = new
    return lambda: owner.__setitem__(key, old)


def change_all(change: Callable[[Any], Undo], items: Iterable[Any]) -> None:
    """Makes a change for each item, or none if there are problems.

    Raises one error with all problems.
    """
    problems: list[Exception] = []
    with contextlib.ExitStack() as undo:
        for item in items:
            try:
                undo.callback(change(item))
            except tuple(_MISTAKES) as problem:
                problems.append(problem)
        if not problems:
            undo.pop_all()
            return
        first, *more_problems = problems
        if not more_problems:
            raise first
        # The first problem decides the type, so that `except AttributeError` works.
        user_kind = next(user for k, user in _MISTAKES.items() if isinstance(first, k))
        lines = [f"{len(problems)} problems; nothing was changed:", *map(str, problems)]
        raise user_kind("\n  ".join(lines)) from first


def delete(root: Fields, steps: Steps) -> Undo:
    """Removes the param at `steps`."""
    owner = resolve(root, steps[:-1])
    _child(owner, steps)
    if not isinstance(owner, Fields):
        raise errors.UserValueError(
            f"Delete expects a param; {format_path(steps)!r} is an item of a "
            f"{type(owner).__name__}. Set the whole {format_path(steps[:-1])!r}."
        )
    owner._CheckMutable(f"delete {format_path(steps)!r}")
    before = dict(owner._fields)
    del owner._fields[steps[-1].name]

    def undo() -> None:
        owner._fields.clear()
        owner._fields.update(before)

    return undo


def _child(owner: Any, steps: Steps) -> Any:
    """Returns the child of `owner` that the last of `steps` names."""
    step = steps[-1]
    if isinstance(step, Name) and isinstance(owner, Fields):
        return owner._Lookup(steps).value
    if isinstance(step, Item) and isinstance(owner, (list, tuple, dict)):
        return _item(owner, step.key, steps)
    needed = "Params" if isinstance(step, Name) else "a list, tuple or dict"
    got = f"{type(owner).__name__} {owner!r}" if owner is not None else "None"
    if isinstance(owner, Fields):
        got = "Params, which have names and no items"
    raise errors.UserAttributeError(
        f"{format_path(steps[:-1])!r} must be {needed} to reach "
        f"{format_path(steps)!r}; got {got}."
    )


def _item(owner: Any, key: int | str, steps: Steps) -> Any:
    if isinstance(owner, dict):
        is_known = key in owner
    else:
        is_known = isinstance(key, int) and -len(owner) <= key < len(owner)
    if is_known:
        return owner[key]
    path = format_path(steps[:-1])
    if isinstance(owner, dict):
        near = did_you_mean(str(key), (k for k in owner if isinstance(k, str)))
        keys = ", ".join(map(repr, owner)) or "nothing"
        rule = f"an item of {path!r}, a dict.{near} It has: {keys}"
    else:
        rule = f"an item of {path!r}, a {type(owner).__name__} of {len(owner)}"
    raise errors.UserAttributeError(f"{format_path(steps)!r} must be {rule}.")
