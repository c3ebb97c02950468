"""The search for params that a layer does not have, and for wrong calls of children."""

import ast
import inspect

from lingvo_pipe.builder import Base
from lingvo_pipe.core.near_names import did_you_mean, suggest
from lingvo_pipe.gpipe import PipeliningLayer
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.tools.port_check.counterparts import INSTEAD, bad_call
from lingvo_pipe.tools.port_check.held_values import STAND_IN, HeldValues, Layer

_SPLITS = "Set splits, the number of stages: it is 1 unless you do."


class PartCheck(HeldValues):
    """A walk that finds wrong uses of params and of children.

    Attributes:
        method: name of the outermost function that the walk is in, or "".
        fprop_methods: names of FProp and of the class's methods that it calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.method = ""
        self.fprop_methods = {"FProp"}

    @property
    def in_fprop(self) -> bool:
        """True in FProp, and in the class's methods that it calls."""
        return self.method in self.fprop_methods

    def _find(
        self, node: ast.AST, what: str, instead: str, kind: str = "change"
    ) -> None:
        raise NotImplementedError

    def _check_layer_call(
        self, node: ast.Call, num_args: int, keywords: list[str]
    ) -> None:
        """Finds wrong arguments of `self.child.FProp(...)` and of `self.child(...)`."""
        func, text = node.func, ast.unparse(node.func)
        layer, name, num_more = self.value(func), "FProp", 2  # `self` and theta.
        if isinstance(layer, Layer) and self.in_fprop:
            instead = f"Call {text}.FProp(theta.{text.removeprefix('self.')}, ...)."
            self._find(node, f"{text}(...) in FProp", instead)
        elif isinstance(func, ast.Attribute):
            layer, name, num_more = self.value(func.value), func.attr, 1
        if isinstance(layer, Layer):
            member = inspect.getattr_static(layer.cls, name, None)
            if inspect.isfunction(member):
                member = getattr(layer.cls, name)
                count, are_all = num_args + num_more, name == "FProp"
                problem = bad_call(member, count, keywords, are_all)
                if problem:
                    self._find(node, text, problem)

    def _check_param(self, node: ast.AST, owner: Params, name: str, what: str) -> None:
        cls = owner.Get("cls") if "cls" in owner else None
        if name in owner or hasattr(type(owner), name) or name in dir(cls or object):
            return
        hint = getattr(cls, "PARAM_HINTS", {}).get(name, "")
        hint = hint or (INSTEAD.get(name, "") if name[:1].isupper() else "")
        classes = getattr(cls, "__mro__", ())
        known = next((x for x in classes if x.__module__ != STAND_IN), None)
        # A class of the file may have params that its functions define.
        is_sure = cls is known or known not in (BaseLayer, Base)
        if is_sure or hint or name[:1].isupper():  # All methods of Params are known.
            keys = owner.GetKeys()
            ends = suggest(key for key in keys if name.endswith(f"_{key}"))
            near = hint or (did_you_mean(name, keys) or ends).strip()
            of = f"{cls.__name__} has" if cls else "There is"
            self._find(node, what, f"{of} no param {name!r}. {near}".strip())

    def _check_set(self, node: ast.AST, keywords: list[str]) -> None:
        owner = self.value(node)
        if isinstance(owner, Params):
            what = ast.unparse(node.func if isinstance(node, ast.Call) else node)
            for name in keywords:
                self._check_param(node, owner, name, what)
            is_new = what.endswith("Params") and "splits" not in keywords
            if is_new and "cls" in owner and owner.Get("cls") is PipeliningLayer:
                self._find(node, what, _SPLITS, "note")


def methods_of_fprop(cls: ast.ClassDef) -> set[str]:
    """Returns the names of FProp and of the class's methods that it calls."""
    methods = {x.name: x for x in cls.body if isinstance(x, ast.FunctionDef)}
    names = ["FProp"]
    for name in names:  # The loop takes what it adds.
        nodes = ast.walk(methods[name]) if name in methods else ()
        attributes = (x for x in nodes if isinstance(x, ast.Attribute))
        used = {x.attr for x in attributes if ast.unparse(x.value) == "self"}
        names += used.intersection(methods).difference(names)
    return set(names)
