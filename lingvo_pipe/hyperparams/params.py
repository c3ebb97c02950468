"""Params: named, documented, nested hyperparameters."""

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from lingvo_pipe.core.errors import UserAttributeError, UserValueError
from lingvo_pipe.core.paths import Name, parse_path
from lingvo_pipe.hyperparams.differences import diff_params
from lingvo_pipe.hyperparams.fields import (
    Field,
    Fields,
    assign,
    change_all,
    delete,
    owner_of,
    resolve,
)
from lingvo_pipe.hyperparams.frozen_values import copy_value, freeze_value, same_value
from lingvo_pipe.hyperparams.text_entries import check_separator
from lingvo_pipe.hyperparams.text_form import read_entries, write_entries
from lingvo_pipe.hyperparams.traversal import braces, walk

Self = TypeVar("Self", bound="Params")


class Params(Fields):
    """A set of named values, each with a default and a description.

    Values are read and set as attributes or, by paths into nested Params, lists and
    dicts, with Get and Set:

        p = Params()
        p.Define("dropout", 0.1, "Probability that an activation is dropped.")
        p.Define("cells", [Cell.Params(), Cell.Params()], "One template per cell.")
        p.dropout = 0.2
        p.Set(dropout=0.3, **{"cells[0].dim": 8})

    A call that changes several params changes none of them if it fails.
    """

    def Delete(self: Self, *names: str) -> Self:
        """Removes the params at the given paths, all or none, and returns self.

        Raises:
            AttributeError: if a name is unknown.
            TypeError: if Params are frozen.
            ValueError: if a path is malformed, or ends in an item of a list or dict.
        """
        self._CheckMutable("delete", *names)
        change_all(lambda name: delete(self, parse_path(name)), names)
        return self

    # ---- Values.

    def Set(self: Self, **values: Any) -> Self:
        """Sets the params at the given paths, all or none, and returns self.

        A path may contain items of lists and dicts: `p.Set(**{"cells[0].dim": 8})`.

        Raises:
            AttributeError: if a name or item is unknown.
            TypeError: if Params are frozen, or a path ends in an item of a tuple.
            ValueError: if a path is malformed.
        """
        self._CheckMutable("set", *values)
        change_all(lambda name: assign(self, parse_path(name), values[name]), values)
        return self

    def Get(self, name: str) -> Any:
        """Returns the value at a path.

        Raises:
            AttributeError: if the path is unknown.
        """
        return resolve(self, parse_path(name))

    def ParamIsSet(self, name: str) -> bool:
        """Returns whether the value at a path is not None."""
        return self.Get(name) is not None

    def IsDefault(self, name: str) -> bool:
        """Returns whether the param at a path has the value it was defined with."""
        steps = parse_path(name)
        field = owner_of(self, steps)._Lookup(steps)
        return same_value(field.value, field.default)

    def MergeCommonKeysFrom(self: Self, other: "Params") -> Self:
        """Copies values of common params, except `cls`, from `other`. Returns self."""
        return CopyFieldsTo(other, self, ignore_unknown_keys=True)

    # ---- The whole.

    def Copy(self: Self) -> Self:
        """Returns a deep, unfrozen copy. Shares tensors, classes and functions."""
        return copy_value(self)

    def Freeze(self) -> None:
        """Makes these Params and all Params, lists and dicts in them unmodifiable."""
        if self._frozen:
            return
        self.__dict__["_frozen"] = True
        for field in self._fields.values():
            field.value = freeze_value(field.value)

    def IsImmutable(self) -> bool:
        """Returns whether these Params are frozen."""
        return self._frozen

    def Visit(
        self,
        visit_fn: Callable[[str, Any], None],
        enter_fn: Callable[[str, Any], bool] | None = None,
        exit_fn: Callable[[str, Any], None] | None = None,
    ) -> None:
        """Walks through all values, depth first, in the order of definition.

        Args:
            visit_fn: called with the path and value of everything that has no children
                or is not entered.
            enter_fn: returns whether to enter a Params, list, tuple, dict or
                dataclass; if None, all are entered.
            exit_fn: called with the path and value of an entered value, after
                everything in it was visited.
        """
        walk(self, visit_fn, enter_fn, exit_fn)

    # ---- As text.

    def ToText(self, include_types: bool = False, separator: str = "\n") -> Any:
        """Returns a text of entries `path : value`, each ended by `separator`.

        FromText reads the text. With `include_types`, returns (text, a dict from each
        path to the name of the value's type).

        Raises:
            ValueError: if a value has no text form.
        """
        check_separator(separator)
        entries = list(write_entries(self))
        text = "".join(f"{entry}{separator}" for entry, _ in entries)
        if include_types:
            return text, {entry.path: kind for entry, kind in entries}
        return text

    def ToTextWithTypes(self) -> str:
        """Returns ToText's text, an empty line, and `path : type` for each entry."""
        text, types = self.ToText(include_types=True)
        return f"{text}\n" + "".join(f"{path} : {t}\n" for path, t in types.items())

    def FromTextWithTypes(self: Self, text: str) -> Self:
        """Sets params from the text of ToTextWithTypes, all or none. Returns self."""
        values, _, types = text.partition("\n\n")
        pairs = (line.rpartition(" : ") for line in types.splitlines())
        return self.FromText(values, {path: kind for path, _, kind in pairs})

    def FromText(
        self: Self,
        text: str,
        type_overrides: dict[str, str] | None = None,
        separator: str = "\n",
    ) -> Self:
        """Sets params from entries `path : value`, all or none, and returns self.

        A value is read as the type of the param's present value. If the present value
        is None, the text is read as the type that it looks like. An entry
        `path (str) : value` names another type. `type_overrides` maps paths to other
        types. Every param accepts `None`. Strings may be bare or quoted. An entry ends
        at a newline, or at `separator` outside of quotes. Lines that start with # are
        comments.

        Raises:
            AttributeError: if a name or item is unknown.
            TypeError: if Params are frozen.
            ValueError: if an entry is malformed.
        """
        self._CheckMutable("read", "text")
        read_entries(self, text, type_overrides or {}, separator)
        return self

    def TextDiff(self, other: "Params") -> str:
        """Returns what differs: lines `> name: value` of self, `< ...` of `other`."""
        return diff_params(self, other)

    # ---- Python's protocols.

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", ())
        if name.startswith("_") and name not in fields:  # Asked by copy and notebooks.
            raise UserAttributeError(name)
        return self._Lookup((Name(name),)).value

    def __setattr__(self, name: str, value: Any) -> None:
        self._CheckMutable("set", name)
        self._Lookup((Name(name),)).value = value

    def __delattr__(self, name: str) -> None:
        self.Delete(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._fields})

    def __eq__(self, other: object) -> bool:
        """Returns whether class, names and values are equal. NaN equals NaN."""
        if type(self) is not type(other):
            return NotImplemented
        return same_value(dict(self.IterParams()), dict(other.IterParams()))

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self: Self) -> Self:
        return self.Copy()  # A shallow copy would share values set later.

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = copied = type(self).__new__(type(self))
        fields: dict[str, Field] = {}
        copied.__dict__.update(_fields=fields, _frozen=False)
        for name, field in self._fields.items():
            value = copy_value(field.value, memo)
            fields[name] = Field(value, field.default, field.description)
        return copied

    def __str__(self) -> str:
        return braces(self)

    __repr__ = __str__


class InstantiableParams(Params):
    """Params that configure the class `cls`. Instantiate creates an object of `cls`."""

    def __init__(self, cls: Any = None) -> None:
        super().__init__()
        self.Define("cls", cls, "The class that these Params configure.")

    def __class_getitem__(cls, configured: Any) -> type["InstantiableParams"]:
        """Returns this class, for annotations such as `InstantiableParams[Layer]`."""
        return cls

    def Instantiate(self, **kwargs: Any) -> Any:
        """Returns `cls(self, **kwargs)`.

        Raises:
            ValueError: if `cls` is None.
        """
        if self.cls is None:
            hint = "Create the Params as InstantiableParams(TheClass), or set cls."
            raise UserValueError(path="cls", expected="a class", got=None, hint=hint)
        return self.cls(self, **kwargs)


Fields._plain, Fields._instantiable = Params, InstantiableParams


# ---- Copies from one Params to another.


def CopyFieldsTo(
    from_p: Params,
    to_p: Self,
    skip: str | Collection[str] | None = None,
    ignore_unknown_keys: bool = False,
) -> Self:
    """Sets the params of `to_p` to deep copies of the values in `from_p`.

    Returns `to_p`. Leaves out `cls` and the names in `skip`. With
    `ignore_unknown_keys`, also leaves out names that `to_p` does not have.

    Raises:
        AttributeError: if `to_p` does not have a name. Nothing is copied then.
    """
    skipped = {*_names(skip)}
    if ignore_unknown_keys:
        skipped |= set(from_p.GetKeys()) - set(to_p.GetKeys())
    names = [name for name in from_p.GetKeys() if name not in skipped]
    return CopyFieldsSubsetTo(from_p, to_p, names)


def CopyFieldsSubsetTo(
    from_p: Params, to_p: Self, fields_to_set: str | Collection[str]
) -> Self:
    """Copies the values of `fields_to_set`, except `cls`, to `to_p`. Returns `to_p`.

    Raises:
        AttributeError: if `from_p` or `to_p` lacks a name.
    """
    names = [name for name in _names(fields_to_set) if name != "cls"]
    return to_p.Set(**{name: copy_value(from_p.Get(name)) for name in names})


def _names(given: str | Collection[str] | None) -> Collection[str]:
    return (given,) if isinstance(given, str) else given or ()
