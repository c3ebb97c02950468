"""A walk that knows which expressions hold params, and layers made of them.

Of a list, it knows what the items hold if all are of one class.

The params of a class of the file are found by following its method `Params` line by
line: `super().Params()`, `p.Define(...)`, `p.train.max_steps = ...`. Calls of other
functions are not followed, so what they return is not known.
"""

import ast
import builtins
import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.tools.port_check.counterparts import CLASSES, UNKNOWN, find

STAND_IN = __name__  # The module of stand-ins.


@dataclass(frozen=True)
class Layer:
    """A layer, or a list of layers, of a class."""

    cls: Any


# A list holds one item that stands for all, or None if they are unlike or unknown.
Held = Params | Layer | list[Any] | None
_Comprehension = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp


class HeldValues(ast.NodeVisitor):
    """A walk that knows what names hold.

    Attributes:
        names: values of imported names, and stand-ins of the file's classes.
        cls: the stand-in of the class that the walk is in, or None.
        held: what the local names of the function hold, or None.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.cls: Any = None
        self.held: dict[str, Held] = {}

    def value(self, node: ast.AST) -> Held:
        """Returns the Params, Layer or list that an expression holds, or None."""
        if isinstance(node, ast.Name):
            return self.held.get(node.id)
        if isinstance(node, ast.Subscript):
            inner = self.value(node.value)
            return inner if isinstance(node.slice, ast.Slice) else _item(inner)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        return self._listed(node)

    def known_class(self, node: ast.AST) -> Any:
        """Returns the class that an expression names, or None."""
        names = dotted(node)
        cls = find(*self._root(names))[0]
        return cls if inspect.isclass(cls) else CLASSES.get("".join(names[-1:]))

    def visit_For(self, node: ast.For) -> None:
        """Follows a loop over a list, also by `enumerate` and `zip`."""
        self._loop(node.target, node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: _Comprehension) -> None:
        """Follows the loops of a comprehension."""
        with self._looping(node):
            self.generic_visit(node)

    visit_GeneratorExp = visit_SetComp = visit_DictComp = visit_ListComp

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Follows `fcs += [x]`."""
        self.generic_visit(node)
        self.assign([node.target], ast.BinOp(node.target, node.op, node.value))

    def assign(self, targets: list[ast.expr], node: ast.expr) -> None:
        """Records what the targets of an assignment hold."""
        value = self.value(node)
        for target in targets:
            if isinstance(target, ast.Name):
                self.held[target.id] = value
            elif isinstance(target, ast.Attribute):
                owner = self.value(target.value)
                if isinstance(owner, Params) and target.attr in owner:
                    owner.Set(**{target.attr: value or UNKNOWN})
            elif isinstance(target, ast.Subscript):
                self._add_items(target.value, ast.List([node]))

    def follow(self, node: ast.Call, is_known: bool) -> None:
        """Follows a call. Unless the function is known, it may change its arguments."""
        name = ast.unparse(node.func)
        self.define(node)
        if node.args and (of := _object_of(node, "append", "extend", "insert")):
            item = node.args[-1]
            self._add_items(of, item if name.endswith("extend") else ast.List([item]))
        if name in ("self.CreateChild", "self.CreateChildren"):
            self.create(node)
        elif not is_known and not hasattr(builtins, name):
            for argument in node.args:  # It may define further params.
                self.held.pop(getattr(argument, "id", ""), None)

    def define(self, node: ast.Call) -> None:
        """Follows `p.Define(name, default, ...)`."""
        of = _object_of(node, "Define")
        owner = self.value(of) if of else None
        arguments = _arguments(node, "name", "default")
        default = arguments.get("default", arguments.get("default_value"))
        if isinstance(owner, Params) and default and "name" in arguments:
            value = self.value(default)
            with contextlib.suppress(AttributeError, ValueError):
                owner.Define(_constant(arguments["name"]), value or UNKNOWN, "")

    def create(self, node: ast.Call) -> None:
        """Follows `self.CreateChild(name, params)`, and CreateChildren with a list."""
        arguments = _arguments(node, "name", "params")
        is_whole = self.cls and {"name", "params"} <= arguments.keys()
        if is_whole and (cls := _class_of(self.value(arguments["params"]))):
            self.cls.held_layers[_constant(arguments["name"])] = cls

    def returned(self, node: ast.AST) -> None:
        """Follows the `return` of a method `Params`."""
        value = self.value(node)
        if isinstance(value, Params):
            params = value
            self.cls.Params = classmethod(lambda cls: params.Copy().Set(cls=cls))

    def _loop(self, target: ast.expr, source: ast.expr) -> None:
        """Records what the target of a loop over `source` holds."""
        if isinstance(source, ast.Call) and isinstance(target, ast.Tuple):
            is_numbered = ast.unparse(source.func) == "enumerate"
            for pair in zip(target.elts[is_numbered:], source.args, strict=False):
                self._loop(*pair)
        elif isinstance(target, ast.Name):
            self.held[target.id] = _item(self.value(source))

    @contextlib.contextmanager
    def _looping(self, node: _Comprehension) -> Iterator[None]:
        """Records what the targets of a comprehension hold within it."""
        walks = [ast.walk(loop.target) for loop in node.generators]
        names = [x.id for walk in walks for x in walk if isinstance(x, ast.Name)]
        outer = {name: self.held.get(name) for name in names}
        self.held |= dict.fromkeys(names)
        for loop in node.generators:
            self._loop(loop.target, loop.iter)
        yield
        self.held |= outer

    def _add_items(self, of: ast.expr, items: ast.expr) -> None:
        """Records that a list has further items."""
        if isinstance(self.value(of), list):
            self.assign([of], ast.BinOp(of, ast.Add(), items))

    def _listed(self, node: ast.AST) -> Held:
        """Returns the list that a display, a comprehension, + or * holds, or None."""
        if isinstance(node, (ast.List, ast.Tuple)):
            return _alike([self.value(x) for x in node.elts])
        if isinstance(node, ast.ListComp):
            with self._looping(node):
                return [self.value(node.elt)]
        if isinstance(node, ast.BinOp):
            sides = [self.value(node.left), self.value(node.right)]
            lists = [x for x in sides if isinstance(x, list)]
            if len(lists) == {ast.Add: 2, ast.Mult: 1}.get(type(node.op)):
                return _alike(sum(lists, []))
        return None

    def _attribute(self, node: ast.Attribute) -> Held:
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        if is_own and self.cls:
            return _params_of(self.cls) if node.attr == "params" else self._part(node)
        owner = self.value(node.value)
        if isinstance(owner, Params) and node.attr in owner:
            inner = owner.Get(node.attr)
            if isinstance(inner, list):
                return _alike(inner)
            return inner if isinstance(inner, Params) else None
        return self._part(node) if isinstance(owner, Layer) else None

    def _part(self, node: ast.Attribute) -> Layer | None:
        owner = self.value(node.value)
        cls = owner.cls if isinstance(owner, Layer) else self.cls
        for base in cls.__mro__:
            if node.attr in vars(base).get("held_layers", {}):
                return Layer(base.held_layers[node.attr])
        return None

    def _called(self, node: ast.Call) -> Params | Layer | None:
        if of := _object_of(node, "Set", "Copy"):
            value = self.value(of)
            return value if isinstance(value, Params) else None
        if of := _object_of(node, "Params"):
            if self.cls and ast.unparse(of).startswith("super("):
                return _params_of(super(self.cls, self.cls))
            if cls := self.known_class(of):
                return _params_of(cls)
        if self.cls and ast.unparse(node.func) == "super":
            return Layer(self.cls.__mro__[1])
        cls = self.known_class(node.func)
        return cls() if cls and issubclass(cls, Params) else None

    def _root(self, names: list[str]) -> tuple[Any, list[str]]:
        """Returns the imported value that `names` begin with, and the other names."""
        for i in range(len(names), 0, -1):
            if ".".join(names[:i]) in self.names:
                return self.names[".".join(names[:i])], names[i:]
        return UNKNOWN, []


def dotted(node: ast.AST) -> list[str]:
    """Returns the names of `a.b.c`, or [] for any other expression."""
    names = ast.unparse(node).split(".")
    return names if all(name.isidentifier() for name in names) else []


def _object_of(node: ast.Call, *names: str) -> ast.expr | None:
    """Returns the object whose method a call calls, if that has one of the names."""
    func = node.func
    is_one = isinstance(func, ast.Attribute) and func.attr in names
    return func.value if is_one else None  # type: ignore[attr-defined]


def _arguments(node: ast.Call, *names: str) -> dict[str, ast.expr]:
    """Returns a call's arguments by name. `names` are the first parameters'."""
    arguments = dict(zip(names, node.args, strict=False))
    return arguments | {x.arg: x.value for x in node.keywords if x.arg}


def _constant(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _item(value: Held) -> Held:
    """Returns what an item of a list holds."""
    if isinstance(value, list):
        return value[0] if value else None
    return value if isinstance(value, Layer) else None


def _class_of(value: Held) -> Any:
    """Returns the class of a layer, of its params, or of all in a list, or None."""
    if isinstance(value, list):
        return _class_of(_item(value))
    if isinstance(value, Params):
        return value.Get("cls") if "cls" in value else None
    return value.cls if isinstance(value, Layer) else None


def _alike(items: list[Any]) -> list[Any]:
    """Returns a list of the first item, which stands for all, or of None."""
    classes = {_class_of(item) for item in items}
    return items[:1] if len(classes) < 2 and None not in classes else [None]


def _params_of(cls: Any) -> Params | None:
    with contextlib.suppress(Exception):  # A class whose Params needs arguments.
        params = cls.Params()
        return params if isinstance(params, Params) else None
    return None
