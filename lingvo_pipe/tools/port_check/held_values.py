"""A walk that knows which expressions hold params, and layers made of them.

The params of a class of the file are found by following its method `Params` line by
line: `super().Params()`, `p.Define(...)`, `p.train.max_steps = ...`. Calls of other
functions are not followed, so what they return is not known.
"""

import ast
import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.tools.port_check.counterparts import CLASSES, UNKNOWN, find

STAND_IN = __name__  # The module of stand-ins.


@dataclass(frozen=True)
class Layer:
    """A layer, or a list of layers, of a class."""

    cls: Any


class HeldValues(ast.NodeVisitor):
    """A walk that knows what names hold.

    Attributes:
        names: values of imported names, and stand-ins of the file's classes.
        cls: the stand-in of the class that the walk is in, or None.
        held: Params or a Layer, or None, by the local names of the function.
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.cls: Any = None
        self.held: dict[str, Params | Layer | None] = {}

    def value(self, node: ast.AST) -> Params | Layer | None:
        """Returns the Params or the Layer that an expression holds, or None."""
        if isinstance(node, ast.Name):
            return self.held.get(node.id)
        if isinstance(node, ast.Subscript):
            inner = self.value(node.value)
            return inner if isinstance(inner, Layer) else None
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        return None

    def known_class(self, node: ast.AST) -> Any:
        """Returns the class that an expression names, or None."""
        names = dotted(node)
        cls = find(*self._root(names))[0]
        return cls if inspect.isclass(cls) else CLASSES.get("".join(names[-1:]))

    def visit_For(self, node: ast.For) -> None:
        """Follows a loop over a list of layers, also by `enumerate` and `zip`."""
        targets, sources = [node.target], [node.iter]
        if isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Tuple):
            is_numbered = ast.unparse(node.iter.func) == "enumerate"
            targets = node.target.elts[is_numbered:]
            sources = node.iter.args
        for target, source in zip(targets, sources, strict=False):
            if isinstance(target, ast.Name):
                value = self.value(source)
                self.held[target.id] = value if isinstance(value, Layer) else None
        self.generic_visit(node)

    def assign(self, targets: list[ast.expr], node: ast.AST) -> None:
        """Records what the targets of an assignment hold."""
        value = self.value(node)
        for target in targets:
            if isinstance(target, ast.Name):
                self.held[target.id] = value
            elif isinstance(target, ast.Attribute):
                owner = self.value(target.value)
                if isinstance(owner, Params) and target.attr in owner:
                    owner.Set(**{target.attr: value or UNKNOWN})

    def define(self, node: ast.Call) -> None:
        """Follows `p.Define(name, default, ...)`."""
        of = _object_of(node, "Define")
        owner = self.value(of) if of else None
        if isinstance(owner, Params) and len(node.args) > 1:
            value = self.value(node.args[1])
            with contextlib.suppress(AttributeError, ValueError):
                owner.Define(_constant(node.args[0]), value or UNKNOWN, "")

    def create(self, node: ast.Call) -> None:
        """Follows `self.CreateChild(name, params)`, and CreateChildren with a list."""
        if self.cls and len(node.args) > 1:
            params = self.value(_element(node.args[1]))
            if isinstance(params, Params) and "cls" in params:
                self.cls.held_layers[_constant(node.args[0])] = params.Get("cls")

    def returned(self, node: ast.AST) -> None:
        """Follows the `return` of a method `Params`."""
        value = self.value(node)
        if isinstance(value, Params):
            params = value
            self.cls.Params = classmethod(lambda cls: params.Copy().Set(cls=cls))

    def _attribute(self, node: ast.Attribute) -> Params | Layer | None:
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        if is_own and self.cls:
            return _params_of(self.cls) if node.attr == "params" else self._part(node)
        owner = self.value(node.value)
        if isinstance(owner, Params) and node.attr in owner:
            inner = owner.Get(node.attr)
            return inner if isinstance(inner, Params) else None
        return self._part(node) if isinstance(owner, Layer) else None

    def _part(self, node: ast.Attribute) -> Layer | None:
        owner = self.value(node.value)
        cls = owner.cls if isinstance(owner, Layer) else self.cls
        for each in cls.__mro__:
            if node.attr in vars(each).get("held_layers", {}):
                return Layer(each.held_layers[node.attr])
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


def _constant(node: ast.AST) -> Any:
    return node.value if isinstance(node, ast.Constant) else None


def _element(node: ast.AST) -> ast.AST:
    """Returns the first element of a list of which all are alike, or `node`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node = node.left
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        return node.elts[0]
    return node.elt if isinstance(node, ast.ListComp) else node


def _params_of(cls: Any) -> Params | None:
    with contextlib.suppress(Exception):  # A class whose Params needs arguments.
        params = cls.Params()
        return params if isinstance(params, Params) else None
    return None
