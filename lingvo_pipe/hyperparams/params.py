"""Params: named, documented, nested hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lingvo_pipe.hyperparams.faults import Transaction
from lingvo_pipe.hyperparams.fields import Field, Fields
from lingvo_pipe.hyperparams.navigate import assign, delete, resolve
from lingvo_pipe.hyperparams.path import Name, parse_path
from lingvo_pipe.hyperparams.show import braces
from lingvo_pipe.hyperparams.values import copy_value, freeze_value, same_value
from lingvo_pipe.hyperparams.visit import walk

Self = TypeVar("Self", bound="Params")


class Params(Fields):
    """A set of named values, each with a default and a description.

    Values are read and set as attributes or, by paths into nested Params, lists and
    dicts, with Get and Set:

        p = Params()
        p.Define("dropout", 0.1, "Probability that an activation is dropped.")
        p.Define("cells", [Cell.Params(), Cell.Params()], "One template a cell.")
        p.dropout = 0.2
        p.Set(dropout=0.3, **{"cells[0].dim": 8})

    A change that names several params is made for all of them or for none.
    """

    def Delete(self: Self, *names: str) -> Self:
        """Removes params, named by paths, all or none.

        Returns:
          self.

        Raises:
          AttributeError: A name is unknown.
          TypeError: These Params, or those a path leads to, are frozen.
          ValueError: A path is malformed or ends in an item.
        """
        self._CheckMutable("delete " + ", ".join(map(repr, names)))
        with Transaction() as transaction:
            for name in names:
                with transaction.attempt():
                    transaction.on_undo(delete(self, parse_path(name)))
        return self

    # ---- Values.

    def Set(self: Self, **values: Any) -> Self:
        """Sets params, named by paths, all or none.

        Args:
          **values: Values by name, or by path: `p.Set(**{"cells[0].dim": 8})`. A path
            may lead through, and end in, an item of a list or dict.

        Returns:
          self.

        Raises:
          AttributeError: A name or item is unknown.
          TypeError: These Params, or those a path leads to, are frozen; or a path ends
            in an item of a tuple.
          ValueError: A path is malformed.
        """
        self._CheckMutable("set " + ", ".join(map(repr, values)))
        with Transaction() as transaction:
            for name, value in values.items():
                with transaction.attempt():
                    transaction.on_undo(assign(self, parse_path(name), value))
        return self

    def Get(self, name: str) -> Any:
        """Returns the value at a path.

        Raises:
          AttributeError: A name or item on the path is unknown.
          ValueError: The path is malformed.
        """
        return resolve(self, parse_path(name))

    def ParamIsSet(self, name: str) -> bool:
        """Whether the value at a path is anything but None."""
        return self.Get(name) is not None

    def IsDefault(self, name: str) -> bool:
        """Whether the param at a path has the value it was defined with."""
        steps = parse_path(name)
        resolve(self, steps)
        owner = resolve(self, steps[:-1])
        if not isinstance(owner, Params):
            raise ValueError(
                f"IsDefault must be given a param; {name!r} is an item of a "
                f"{type(owner).__name__}, which has no default of its own."
            )
        field = owner._Lookup(steps)
        return same_value(field.value, field.default)

    def MergeCommonKeysFrom(self: Self, other: Params) -> Self:
        """Sets every param that `other` has too to its value there; returns self."""
        return self.Set(**{k: v for k, v in other.IterParams() if k in self})

    # ---- The whole.

    def Copy(self: Self) -> Self:
        """Returns a deep copy, which is not frozen, so that it can be edited.

        Tensors, variables, dtypes, classes and functions are shared with the copy.
        """
        return copy_value(self)

    def Freeze(self) -> None:
        """Makes these Params and all Params, lists and dicts in them unmodifiable."""
        if self._frozen:
            return
        self.__dict__["_frozen"] = True
        for field in self._fields.values():
            field.value = freeze_value(field.value)

    def IsImmutable(self) -> bool:
        """Whether these Params are frozen."""
        return self._frozen

    def Visit(
        self,
        visit: Callable[[str, Any], None],
        enter: Callable[[str, Any], bool] | None = None,
        exit: Callable[[str, Any], None] | None = None,
    ) -> None:
        """Walks through all values, depth first, in the order of definition.

        Args:
          visit: Called with the path and value of everything that holds no others or
            is not entered.
          enter: Called with every Params, list, tuple, dict and dataclass; entered
            only if it returns True. By default all are.
          exit: Called when all in an entered one were visited.
        """
        walk(self, visit, enter, exit)

    # ---- As text. Imported late: the modules of the text form build Params.

    def ToText(self, include_types: bool = False, separator: str = "\n") -> Any:
        """Returns one `path : value` an entry, which FromText reads back.

        Args:
          include_types: Whether to return the types too.
          separator: What ends an entry.

        Returns:
          The text, or with `include_types` the text and a dict from path to the name
          of the value's type.

        Raises:
          ValueError: A value has no text form.
        """
        from lingvo_pipe.hyperparams.entries import check_separator
        from lingvo_pipe.hyperparams.text_write import write_entries

        check_separator(separator)
        entries = list(write_entries(self))
        text = "".join(f"{entry}{separator}" for entry, _ in entries)
        if include_types:
            return text, {entry.path: kind for entry, kind in entries}
        return text

    def ToTextWithTypes(self) -> str:
        """Returns ToText's text, an empty line, and `path : type` for every entry."""
        text, types = self.ToText(include_types=True)
        return f"{text}\n" + "".join(f"{path} : {t}\n" for path, t in types.items())

    def FromTextWithTypes(self: Self, text: str) -> Self:
        """Reads what ToTextWithTypes wrote; as FromText otherwise."""
        values, _, types = text.partition("\n\n")
        pairs = (line.rpartition(" : ") for line in types.splitlines())
        return self.FromText(values, {path: kind for path, _, kind in pairs})

    def FromText(
        self: Self,
        text: str,
        type_overrides: dict[str, str] | None = None,
        separator: str = "\n",
    ) -> Self:
        """Sets params from entries `path : value`, all or none.

        A value is read as the type the param now has, or as what it looks like where
        the param is None; `path (str) : value` names another type. `None` is a value
        of every param. Strings may be bare or quoted. Lines that start with # are
        comments.

        Args:
          text: The entries, each ended by a newline or by `separator`.
          type_overrides: Names of types by path, as ToText(include_types=True) gives
            them.
          separator: What else ends an entry, outside of quotes.

        Returns:
          self.

        Raises:
          AttributeError: A name or item is unknown.
          TypeError: These Params, or those a path leads to, are frozen.
          ValueError: An entry, a path or a value is malformed.
        """
        from lingvo_pipe.hyperparams.text_read import read_entries

        self._CheckMutable("read text")
        read_entries(self, text, type_overrides or {}, separator)
        return self

    def TextDiff(self, other: Params) -> str:
        """Returns what differs: `> path : value` for these, `< ...` for `other`."""
        from lingvo_pipe.hyperparams.diff import text_diff

        return text_diff(self, other)

    # ---- Python's protocols.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Asked by copy, pickle and notebooks.
            raise AttributeError(name)
        return self._Lookup((Name(name),)).value

    def __setattr__(self, name: str, value: Any) -> None:
        self._CheckMutable(f"set {name!r}")
        self._Lookup((Name(name),)).value = value

    def __delattr__(self, name: str) -> None:
        self.Delete(name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._fields})

    def __eq__(self, other: object) -> bool:
        """Whether classes, names and values are equal, NaN being equal to NaN."""
        if type(self) is not type(other):
            return NotImplemented
        return same_value(dict(self.IterParams()), dict(other.IterParams()))

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self: Self) -> Self:
        return self.Copy()  # A shallow one would share what is set later.

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
