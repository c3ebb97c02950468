"""A search of one file's syntax tree for code that will not port from Lingvo."""

import ast
import contextlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import lingvo_pipe
from lingvo_pipe.builder import Base
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.core.accumulators import Accumulator
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.schedule import BaseSchedule
from lingvo_pipe.tools.port_check.call_check import CallCheck
from lingvo_pipe.tools.port_check.counterparts import (
    IN_FPROP,
    INSTEAD,
    MODULES,
    MORE_IN_LINGVO,
    RANDOM,
    UNCALLED,
    UNKNOWN,
    bad_call,
    find,
)
from lingvo_pipe.tools.port_check.held_values import STAND_IN, Layer, dotted
from lingvo_pipe.tools.port_check.part_check import methods_of_fprop
from lingvo_pipe.tools.port_check.tasks import sets_cells, task_problems
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import DecodingTask

_METHOD = re.compile(r"_?[A-Z]\w*")
_STATE = "Return it, or call self.Accumulate or self.AddMetric."
_CONDITION = "Write tf.cond or tf.where: FProp is traced, and not autographed."
_NOT_STOOD_FOR = {"Params", "_child_variable_scope_override"}
_FIRST = {"Params": 0, "__init__": 1}
_UNCALLED = "Nothing calls it here: delete it, or call it yourself."
_VALUE = "Define Value(self), a function of py_utils.GetGlobalStep()."


@dataclass(order=True, frozen=True)
class Finding:
    """Code in a line of a file, and what to write instead.

    `kind` is "import" if an import only gets another name. It is "change" if the code
    will not port as it is. It is "note" if the code ports, but does less than in
    Lingvo, or could be better.
    """

    line: int
    kind: str
    what: str
    instead: str


def check_source(source: str) -> list[Finding]:
    """Returns the findings in a file's text.

    Raises:
        SyntaxError: if the text is not Python.
    """
    tree = ast.parse(source)
    check = _Check()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            check.add_import(node)
        if isinstance(node, ast.ClassDef):
            check.bases |= {ast.unparse(base) for base in node.bases}
    check.has_cells = sets_cells(tree)
    check.visit(tree)
    return sorted(check.findings)


class _Check(CallCheck):
    """A walk over a file's syntax tree that collects findings.

    The stand-in of a layer or builder of the file is a class with the same known bases
    and members, but its members are UNKNOWN.

    Attributes:
        tensors: names of the method's variables that hold tensors.
        missing: what to use instead of imported names that are not here.
        bases: names of the base classes of the file's classes.
        has_cells: True if the file sets a param cell_tpl.
    """

    def __init__(self) -> None:
        super().__init__()
        self.findings: set[Finding] = set()
        self.tensors: set[str] = set()
        self.bases: set[str] = set()
        self.has_cells = False
        self.missing: dict[str, str] = {}

    def add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        module = getattr(node, "module", None) or ""
        for alias in node.names:
            name, local = alias.name, alias.asname or alias.name
            path = f"{module}.{name}".strip(".")
            self.is_lingvos |= path.startswith("lingvo.")
            if path.startswith("lingvo_pipe") and name != "*":
                with contextlib.suppress(AttributeError, ImportError):
                    pkgutil.resolve_name(path)  # Imports the modules on the path.
                self.names[local] = self._found(node, lingvo_pipe, path.split(".")[1:])
            elif isinstance(node, ast.Import) or module in ("lingvo", "lingvo.core"):
                self._add_module(node, path, local, local)
            elif module.startswith("lingvo."):
                self._add_module(node, module, "", local)
                if module in MODULES and name != "*":
                    self.names[local] = self._found(node, MODULES[module], [name])

    def _add_module(self, node: ast.AST, module: str, local: str, name: str) -> None:
        if module in ("tensorflow", "tensorflow.compat.v1"):
            self.names[local] = tf
        self.has_tf1 |= module in ("lingvo.compat", "tensorflow.compat.v1")
        if module not in (*MODULES, "tensorflow.compat.v1"):
            if module.partition(".")[0] == "lingvo":
                text = "Port that module first, or leave out what uses it."
                instead = INSTEAD.get(module.split(".")[-1], text)
                self._find(node, module, instead)
                self.missing[name] = instead
            return
        value = self.names[local] = MODULES.get(module, tf)
        package, _, last = value.__name__.rpartition(".")
        written = f"from {package} import {last}" if package else f"import {last}"
        if not local:
            written = f"from {value.__name__} import ..."
        elif "." in local:
            written = f"import {value.__name__}, and write this where it is used"
        elif local != last:
            written += f" as {local}"
        self._find(node, module, written, "import")

    # ---- Names and calls.

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names, text = dotted(node), ast.unparse(node)
        root, attributes = self._root(names)
        is_part = text.startswith("self.") and node.attr in IN_FPROP
        if self.cls and self.in_fprop and is_part:
            self._find(node, f"{text} in FProp", IN_FPROP[node.attr])
        if self.cls and node.attr in ("Disable", "Enable"):
            self._find(node, text, INSTEAD[node.attr])
        owner = self.value(node.value)
        if isinstance(owner, Params):
            self._check_param(node, owner, node.attr, text.replace("self.params", "p"))
        elif names[:1] == ["p"] and self.cls and not self.held.get("p"):
            hint = getattr(self.cls, "PARAM_HINTS", {}).get(names[-1])
            if hint and not hasattr(self.cls, names[-1]):
                self._find(node, text, hint)
        elif self.cls and text == f"super().{node.attr}":
            self._check_own(node, node.attr, "super()", self.cls.__bases__)
        elif isinstance(owner, Layer) and not self.value(node):
            self._check_own(node, node.attr, ast.unparse(node.value), [owner.cls])
        elif names[:1] == ["self"] and self.cls:
            self._check_own(node, names[1], "self", [self.cls])
        elif names and names[0] in self.missing:
            self._find(node, text, self.missing[names[0]])
            return
        elif root is not UNKNOWN:
            self._found(node, root, attributes, ".".join(names))
            return
        self.generic_visit(node)

    def _found(self, node: ast.AST, root: Any, names: list[str], what: str = "") -> Any:
        value, instead = find(root, names)
        if self.is_lingvos:
            for name in set(names).intersection(MORE_IN_LINGVO):
                self._find(node, name, MORE_IN_LINGVO[name], "note")
        if instead:
            # Inputs and tests may draw as they like.
            kind = "note" if instead == RANDOM and not self.cls else "change"
            self._find(node, what or ".".join(names), instead, kind)
        return value

    # ---- Conditions.

    def visit_If(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> None:
        if self.cls and self.in_fprop and self._is_tensor(node.test):
            self._find(node.test, ast.unparse(node.test), _CONDITION)
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_Assert = visit_If

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            owner = self.value(getattr(target, "value", target))
            if isinstance(target, ast.Attribute) and isinstance(owner, Params):
                self._check_function(node.value, ast.unparse(target))
        self.assign(node.targets, node.value)
        targets = {x.id for x in node.targets if isinstance(x, ast.Name)}
        self.tensors -= targets
        if self._is_tensor(node.value):
            self.tensors |= targets

    def _is_tensor(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            value = find(*self._root(dotted(node.func)))[0]
            # TensorFlow's operations have dispatchers; is_tensor and the like have not.
            return hasattr(value, "_tf_fallback_dispatchers")
        if isinstance(node, ast.Name):
            return node.id in self.tensors
        parts = (ast.BinOp, ast.BoolOp, ast.Compare, ast.Subscript, ast.UnaryOp)
        if not isinstance(node, parts) or re.search(r" (is|in) ", ast.unparse(node)):
            return False
        return any(map(self._is_tensor, ast.iter_child_nodes(node)))

    # ---- Layers and builders.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.cls = self.cls, None
        methods, self.fprop_methods = self.fprop_methods, methods_of_fprop(node)
        bases = [find(*self._root(dotted(base)))[0] for base in node.bases]
        classes = [x for x in bases if inspect.isclass(x)]
        self.in_accumulator = any(issubclass(x, Accumulator) for x in classes)
        if any(issubclass(x, (BaseLayer, Base)) for x in classes):
            members: dict[str, Any] = dict.fromkeys(_defined(node), UNKNOWN)
            members |= {"__module__": STAND_IN, "held_layers": {}}
            self.cls = self.names[node.name] = type(node.name, tuple(classes), members)
            if issubclass(self.cls, BaseTask):
                is_base = node.name in self.bases
                for problem in task_problems(node, self.cls, is_base, self.has_cells):
                    self._find(*problem)
        # Other methods use what these two define.
        node.body.sort(key=lambda x: _FIRST.get(getattr(x, "name", ""), len(_FIRST)))
        self.generic_visit(node)
        self.cls, self.fprop_methods, self.in_accumulator = outer, methods, False

    def visit_Return(self, node: ast.Return) -> None:
        self.generic_visit(node)
        if self.cls and self.method == "Params" and node.value:
            self.returned(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self.method = self.method, self.method or node.name
        if not outer:
            args = node.args.args[2 : -len(node.args.defaults) or None]
            self.tensors = {x.arg for x in args if node.name == "FProp"}
            if self.cls:
                self._check_override(node)
                self._check_update(node)
        self._visit_scope(node)
        self.method = outer

    def _visit_scope(self, node: ast.FunctionDef | ast.Lambda) -> None:
        """Visits a function. Its local names hide imported names."""
        names, self.names = self.names, dict(self.names)
        held, self.held = self.held, dict(self.held)
        inner, self.inner = self.inner, set(self.inner)
        if self.cls and self.method == "FPropMeta":
            self.held["p"] = self.cls.Params()
        for child in ast.walk(node):
            if isinstance(child, ast.arg):
                self.names.pop(child.arg, None)
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                self.names.pop(child.id, None)
            if isinstance(child, ast.FunctionDef) and child is not node:
                self.inner.add(child.name)
        self.generic_visit(node)
        self.names, self.held, self.inner = names, held, inner

    visit_Lambda = _visit_scope

    def _check_override(self, node: ast.FunctionDef) -> None:
        """Finds methods that nothing here calls, or calls with other arguments."""
        for cls, names in UNCALLED.items():
            if issubclass(self.cls, cls) and node.name in names:
                self._find(node, node.name, _UNCALLED)
        if issubclass(self.cls, BaseTask) and node.name == "Decode":
            signature = inspect.signature(DecodingTask.Decode)
            if len(node.args.args) != len(signature.parameters):
                self._find(node, "Decode", f"It is called as Decode{signature}.")
        base = inspect.getattr_static(self.cls.__mro__[1], node.name, None)
        if not inspect.isfunction(base) or node.name == "__init__":
            return
        if node.name == "FProp":
            if issubclass(self.cls, BaseSchedule):
                self._find(node, "FProp", _VALUE)
            return
        arguments = [x.arg for x in node.args.args]
        steps = {"current_step", "global_step", "step"}.intersection(arguments)
        if steps or bad_call(base, len(arguments) - len(node.args.defaults), []):
            hint = " Call py_utils.GetGlobalStep()." if steps else ""
            called = f"It is called as {node.name}{inspect.signature(base)}."
            self._find(node, node.name, called + hint)

    def _check_own(
        self, node: ast.Attribute, name: str, of: str, classes: Iterable[type]
    ) -> None:
        """Finds attributes that `classes` do not define, or that FProp sets."""
        members = {x for cls in classes for x in dir(cls)}
        if isinstance(node.ctx, ast.Store):
            if self.in_fprop:
                self._find(node, f"self.{name} = ... in FProp", _STATE)
        elif name not in members:
            near = did_you_mean(name, (x for x in members if x[:2] != "__"))
            if name in INSTEAD or _METHOD.fullmatch(name):
                instead = near.strip() or "There is no such method."
                self._find(node, f"{of}.{name}", INSTEAD.get(name, instead))

    def _find(
        self, node: ast.AST, what: str, instead: str, kind: str = "change"
    ) -> None:
        line = getattr(node, "lineno", 0)
        self.findings.add(Finding(line, kind, what, instead))


def _defined(node: ast.ClassDef) -> set[str]:
    names = set()
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef):
            names.add(child.name)
        elif isinstance(getattr(child, "ctx", None), ast.Store):
            text = ast.unparse(child).removeprefix("self.")
            names.add(text.partition("[")[0])
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            names.add(child.value)
    return {x for x in names if x.isidentifier() and x[:2] != "__"} - _NOT_STOOD_FOR
