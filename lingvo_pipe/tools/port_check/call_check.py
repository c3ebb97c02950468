"""The search for calls that will not port, or do something else here."""

import ast
import inspect
from typing import Any

import tensorflow as tf

from lingvo_pipe import py_utils
from lingvo_pipe.builder import Base
from lingvo_pipe.tools.port_check.counterparts import UNKNOWN, bad_call, find
from lingvo_pipe.tools.port_check.held_values import dotted
from lingvo_pipe.tools.port_check.part_check import PartCheck

_DEFAULT = "Write default, which Lingvo calls default_value."
_NOTHING = "It returns nothing: call it on a line of its own, and not within tf.group."
_ROWS = (
    "A condition [B] is broadcast here, and picks no rows of [B, D]: give it the rank "
    "of what it picks from."
)
_SCOPE = (
    "Leave it out: operations have the scope already, and a layer that reads its name "
    "is traced by itself."
)
_STEP = "It raises an error except in training: ask self.do_eval first."
_SUM = "An Accumulator adds up over micro-batches: it cannot be a minimum or a maximum."
_UNNAMED = "Name a function that the module defines: the trainer needs its text."


class CallCheck(PartCheck):
    """A walk that finds calls that will not port, or do something else here.

    Attributes:
        is_lingvos: True if the file imports modules of Lingvo.
        has_tf1: True if it imports a TensorFlow with the `where` of TensorFlow 1.
        in_accumulator: True in a class derived from Accumulator.
        inner: names of the functions that the enclosing functions define.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_lingvos = self.has_tf1 = self.in_accumulator = False
        self.inner: set[str] = set()

    def visit_Call(self, node: ast.Call) -> None:
        """Finds what is wrong with a call, and follows it."""
        keywords = [keyword.arg for keyword in node.keywords if keyword.arg]
        names, num_args = dotted(node.func), len(node.args)
        value = find(*self._root(names))[0]
        if names[:1] == ["self"] and self.cls and len(names) == 2:
            value = getattr(self.cls, names[1], UNKNOWN)
            member = inspect.getattr_static(self.cls, names[1], None)
            num_args += inspect.isfunction(member)  # It gets `self` too.
        is_plain = not any(isinstance(x, ast.Starred) for x in node.args)
        if is_plain and (problem := bad_call(value, num_args, keywords)):
            self._find(node, ".".join(names), problem)
        if is_plain and len(keywords) == len(node.keywords):
            self._check_layer_call(node, len(node.args), keywords)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "Set":
            self._check_set(node.func.value, keywords)
        self.follow(node, value is not UNKNOWN)
        reads_name = any(ast.unparse(x).endswith(".name") for x in node.args)
        if names[1:] == ["name_scope"] and self.in_fprop and reads_name:
            self._find(node, ast.unparse(node), _SCOPE, "note")
        self._check_known(node, value, keywords)
        self._check_functions(node)
        self.generic_visit(node)

    def _check_known(self, node: ast.Call, value: Any, keywords: list[str]) -> None:
        """Finds calls of functions that do something else here."""
        name, picks = ast.unparse(node.func), len(node.args) > 2 or "y" in keywords
        notes = [
            (py_utils.GetGlobalStep, self.in_fprop, _STEP),
            (tf.where, self.has_tf1 and picks, _ROWS),
            (tf.minimum, self.in_accumulator, _SUM),
            (tf.maximum, self.in_accumulator, _SUM),
        ]
        for function, applies, hint in notes:
            if value is function and applies and self.is_lingvos:
                self._find(node, name, hint, "note")
        if name.endswith(".Define") and "default_value" in keywords:
            self._find(node, name, _DEFAULT)

    def _check_functions(self, node: ast.Call) -> None:
        """Finds functions without a text among arguments of params and of builders."""
        name, method = ast.unparse(node.func), getattr(node.func, "attr", "")
        in_builder = name == f"self.{method}" and issubclass(self.cls or object, Base)
        for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
            # A builder's own method may only call a function that it gets.
            is_kept = isinstance(value, ast.Lambda) or hasattr(Base, method)
            if method in ("Define", "Set") or (in_builder and is_kept):
                self._check_function(value, name)

    def _check_function(self, node: ast.expr, place: str) -> None:
        """Finds a lambda or a nested function that a param is set to."""
        if isinstance(node, ast.Lambda):
            self._find(node, f"a lambda in {place}", _UNNAMED)
        elif isinstance(node, ast.Name) and node.id in self.inner:
            self._find(node, f"{node.id} in {place}", _UNNAMED)

    def _check_update(self, method: ast.FunctionDef) -> None:
        """Finds uses of what other layers' PostTrainingStepUpdate returns."""
        nodes = list(ast.walk(method))
        unused = [x.value for x in nodes if isinstance(x, (ast.Expr, ast.Return))]
        for node in nodes:
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.endswith(".PostTrainingStepUpdate") and node not in unused:
                self._find(node, name, _NOTHING)
