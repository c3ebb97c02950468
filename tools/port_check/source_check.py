"""Checks of one file's syntax tree: what will not port, line by line."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.layers.core.base_layer import BaseLayer
from tools.port_check import counterparts
from tools.port_check.counterparts import UNKNOWN

_METHOD = re.compile(r"_?[A-Z]\w*")
_OF_LAYERS = {
    "cluster": "Devices are params of PipeliningLayer.",
    "_private_vars": "Read theta.",
    "_private_theta": "Read theta.",
}
_SHARDING = "Leave it out: weights are not sharded."
_OF_PARAMS = {
    "activation_split_dims_mapping": _SHARDING,
    "add_name_to_theta": "Leave it out.",
    "allow_implicit_capture": "Leave it out: FProp must not capture tensors.",
    "device_mesh": _SHARDING,
    "is_inference": "Ask self.do_eval.",
    "skip_lp_regularization": "Set task.train.l2_regularizer_scales.",
    "vn": "Leave it out, or add noise by current_context().uniform in FProp.",
    "weight_split_dims_mapping": _SHARDING,
}
_STEP = "It is called without a step: call py_utils.GetGlobalStep()."


@dataclass(order=True, frozen=True)
class Finding:
    """A line, what is in it, and what to write instead."""

    line: int
    what: str
    instead: str


@dataclass
class Report:
    """Changes that a file needs.

    Attributes:
        imports: imports that only get another name.
        findings: what will not port as it is.
        notes: what ports, but could be better.
    """

    imports: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


def check_source(source: str) -> Report:
    """Returns the report of a file's text; raises SyntaxError if it is not Python."""
    tree = ast.parse(source)
    check = _Check()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            check.add_import(node)
    check.visit(tree)
    report = check.report
    for found in (report.imports, report.findings, report.notes):
        found[:] = sorted(set(found))
    return report


@dataclass
class _Layer:
    """A layer class of the file: its base outside of the file, and its members."""

    base: Any
    members: set[str]


class _Check(ast.NodeVisitor):
    """The walk over a file. `names` has the values of imported names and classes."""

    def __init__(self) -> None:
        self.report = Report()
        self.names: dict[str, Any] = {}
        self.layer: _Layer | None = None
        self.method = ""

    def add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Notes the values of an import's names, and the import's new form."""
        for alias in node.names:
            local, name = alias.asname or alias.name, alias.name
            if isinstance(node, ast.Import):
                if name in ("tensorflow", "tensorflow.compat.v1"):
                    self.names[local] = tf
                if name.startswith("lingvo"):
                    self._add_module(node, name, local)
            elif (node.module or "").partition(".")[0] == "lingvo":
                module = node.module or ""
                if module in ("lingvo", "lingvo.core"):
                    self._add_module(node, f"{module}.{name}", local)
                elif parent := self._add_module(node, module, ""):
                    self.names[local] = self._found(node, parent, [name])

    def _add_module(self, node: ast.AST, module: str, local: str) -> Any:
        value = counterparts.counterpart(module)
        if value is None:
            self._find(node, module, counterparts.without_module(module))
            return None
        ours = value.__name__
        if local:
            self.names[local] = value
        package, _, name = ours.rpartition(".")
        written = f"from {package} import {name}" if package else f"import {name}"
        if local and local != name:
            written += f" as {local}"
        if not local:
            written = f"from {ours} import ..."
        finding = Finding(getattr(node, "lineno", 0), module, written)
        self.report.imports.append(finding)
        return value

    # ---- Names and calls.

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names = _dotted(node)
        if names and self.names.get(names[0], UNKNOWN) is not UNKNOWN:
            self._check_name(node, names)
        elif names[:2] == ["self", "params"] or names[:1] == ["p"]:
            self._check_param(node, names[-1])
        elif names and names[0] == "self" and self.layer:
            self._check_own(node, names[1], self.layer)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        keywords = [each.arg for each in node.keywords if each.arg]
        is_plain = not any(isinstance(x, ast.Starred) for x in node.args)
        value, names = self._value(node.func)
        if value is not UNKNOWN and is_plain:
            num_args = len(node.args) + (names[0] == "self")
            problems = counterparts.bad_arguments(value, num_args, keywords)
            for problem in problems:
                self._find(node, ".".join(names), problem)
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "Set":
            self._check_params(node.func.value, keywords)
        self.generic_visit(node)

    def _check_param(self, node: ast.AST, name: str) -> None:
        """Checks `p.name` in a layer."""
        if self.layer is None or name not in _OF_PARAMS:
            return
        if name not in {*self.layer.members, *self.layer.base.Params().GetKeys()}:
            self._find(node, f"p.{name}", _OF_PARAMS[name])

    def _check_params(self, node: ast.AST, keywords: list[str]) -> None:
        """Checks the names in `Class.Params().Set(name=...)`."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return
        cls, _ = self._value(node.func.value)
        if node.func.attr == "Params" and inspect.isclass(cls):
            for problem in counterparts.bad_params(cls, keywords):
                self._find(node, f"{cls.__name__}.Params", problem)

    def _value(self, node: ast.AST) -> tuple[Any, list[str]]:
        """Returns the value of a dotted name, or UNKNOWN, and its parts."""
        names = _dotted(node)
        if not names:
            return UNKNOWN, names
        if names[0] == "self" and self.layer and len(names) == 2:
            is_own = names[1] in self.layer.members
            root = UNKNOWN if is_own else self.layer.base
            return getattr(root, names[1], UNKNOWN), names
        root = self.names.get(names[0], UNKNOWN)
        if root is UNKNOWN or isinstance(root, _Layer):
            return UNKNOWN, names
        return counterparts.find(root, names[1:])[0], names

    def _check_name(self, node: ast.Attribute, names: list[str]) -> None:
        root, what = self.names[names[0]], ".".join(names)
        if isinstance(root, _Layer):
            return
        if root is tf and (instead := counterparts.misplaced(names[1:])):
            self._find(node, what, instead)
        else:
            self._found(node, root, names[1:], what)

    def _found(self, node: ast.AST, root: Any, names: list[str], what: str = "") -> Any:
        value, instead = counterparts.find(root, names)
        if instead:
            self._find(node, what or ".".join(names), instead)
        return value

    # ---- Layers.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.layer, members = self.layer, None, _defined(node)
        for each in node.bases:
            own = self.names.get(_dotted(each)[0]) if _dotted(each) else None
            base = own.base if isinstance(own, _Layer) else self._value(each)[0]
            if isinstance(own, _Layer):
                members |= own.members
            if inspect.isclass(base) and issubclass(base, BaseLayer):
                self.layer = self.names[node.name] = _Layer(base, members)
        self.generic_visit(node)
        self.layer = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self.method = self.method, self.method or node.name
        if self.layer and not outer:
            has_step = any("step" in each.arg for each in node.args.args[1:2])
            is_value = node.name == "Value" and hasattr(self.layer.base, "ValueAt")
            if has_step and (is_value or node.name == "PostTrainingStepUpdate"):
                self._find(node, node.name, _STEP)
        names, self.names = self.names, dict(self.names)
        for each in ast.walk(node):  # Local names hide imported ones.
            if isinstance(each, ast.arg):
                self.names.pop(each.arg, None)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                self.names.pop(each.id, None)
        self.generic_visit(node)
        self.names, self.method = names, outer

    def _check_own(self, node: ast.Attribute, name: str, layer: _Layer) -> None:
        """Checks `self.name` in a layer."""
        if isinstance(node.ctx, ast.Store) and self.method == "FProp":
            instead = "Return it, or call self.Accumulate or self.AddMetric."
            self._find(node, f"self.{name} = ... in FProp", instead)
        elif name in layer.members or hasattr(layer.base, name):
            return
        elif _METHOD.fullmatch(name) and isinstance(node.ctx, ast.Load):
            near = did_you_mean(name, dir(layer.base)).strip()
            self._find(node, f"self.{name}", near or "Layers have no such method.")
        elif name in _OF_LAYERS:
            self._find(node, f"self.{name}", _OF_LAYERS[name])

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and _dotted(call.func)[1:] == ["name_scope"]:
                argument = ast.unparse(call.args[0]) if call.args else ""
                if self.method == "FProp" and argument.endswith(".name"):
                    instead = (
                        "Leave it out: operations have the scope already, and a layer "
                        "that reads its name is traced by itself."
                    )
                    finding = Finding(node.lineno, ast.unparse(call), instead)
                    self.report.notes.append(finding)
        self.generic_visit(node)

    def _find(self, node: ast.AST, what: str, instead: str) -> None:
        self.report.findings.append(Finding(getattr(node, "lineno", 0), what, instead))


def _defined(node: ast.ClassDef) -> set[str]:
    """Returns the names of a class's methods, children and attributes."""
    names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            names.add(inner.attr)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        if isinstance(inner, ast.Call) and inner.args:
            first = inner.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.add(first.value)
    return names


def _dotted(node: ast.AST) -> list[str]:
    """Returns the parts of `a.b.c`; none if it is something else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return [node.id, *parts] if isinstance(node, ast.Name) else []
