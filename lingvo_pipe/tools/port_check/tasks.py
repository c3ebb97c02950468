"""The search for what will not port in tasks. Lingvo's have layers as children."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from lingvo_pipe.tools.port_check.held_values import dotted
from lingvo_pipe.training.task.base_task import BaseTask

Problem = tuple[ast.AST, str, str]  # place, what is there, what to write instead

_NEEDED = {
    "PipelineInputs": "PipelineInputs(self, input_batch), the first layer's inputs",
    "LossTargets": "LossTargets(self, input_batch), what the loss needs of the batch",
    "ComputeLoss": "ComputeLoss(self, predictions, targets), a micro-batch's metrics",
}
_CELLS = "p.pipeline.cell_tpl = [...], the layers to train, unless another file sets it"
_SETS_CELLS = re.compile(
    r"\.cell_tpl(\[.*\])?(\.append|\.extend|\.insert| \+?= )|\bcell_tpl=(?!=)"
)
_CREATED = ("CreateChild", "CreateChildren", "CreateVariable", "RegisterAccumulator")
_IN_PIPELINE = (
    "List it, or a layer that has it, in p.pipeline.cell_tpl, whose layers are trained."
)
_NOT_RUN = (
    "Training runs the layers of p.pipeline, and not this: make a layer's FProp of it."
)
_PAIR = "Return metrics alone, as NestedMap(loss=(mean, weight))."
_NO_WEIGHTS = "Weights belong in layers: compute it in the pipeline's last one."
_REPORTED = "Return it from ComputeLoss, as name=(mean, weight)."


def sets_cells(tree: ast.AST) -> bool:
    """Returns whether a file sets a param `cell_tpl`."""
    return bool(_SETS_CELLS.search(ast.unparse(tree)))


def task_problems(
    node: ast.ClassDef, cls: Any, is_base: bool, has_cells: bool
) -> Iterator[Problem]:
    """Yields the problems of a task's class. A base of others need not be complete."""
    inherited = (x for x in _NEEDED if getattr(cls, x) is getattr(BaseTask, x))
    missing = {name: _NEEDED[name] for name in inherited}
    if not has_cells:
        missing["p.pipeline.cell_tpl"] = _CELLS
    if missing and not is_base:
        yield node, f"no {', '.join(missing)}", f"Add {'; '.join(missing.values())}."
    defined = [x for x in node.body if isinstance(x, ast.FunctionDef)]
    methods = {f"self.{x.name}": x for x in defined}
    for method in defined:
        if method.name == "ComputePredictions":
            yield method, method.name, _NOT_RUN
        in_loss = method.name == "ComputeLoss"
        for child in ast.walk(method):
            names = dotted(child.func) if isinstance(child, ast.Call) else []
            name = names[1] if names[:1] == ["self"] and len(names) == 2 else ""
            if name in _CREATED:
                yield child, f"self.{name}", _IN_PIPELINE
            if in_loss and name in ("AddEvalMetric", "AddLoss", "AddMetric"):
                yield child, f"self.{name}", _REPORTED
            text = ast.unparse(child) if isinstance(child, ast.Attribute) else ""
            if in_loss and text in ("self.theta", "self.vars"):
                yield child, f"{text} in ComputeLoss", _NO_WEIGHTS
            is_return = in_loss and isinstance(child, ast.Return)
            if is_return and _is_pair(child, method, methods):
                yield child, ast.unparse(child), _PAIR


def _is_pair(
    returned: ast.AST, method: ast.FunctionDef, methods: dict[str, ast.FunctionDef]
) -> bool:
    """Returns whether a tuple may be returned, by a name or another method too."""
    todo: list[Any] = [(returned, method)]
    for node, scope in todo:  # The loop takes what it adds.
        more: list[Any] = []
        if isinstance(node, ast.Return):
            more = [(node.value, scope)]
        elif isinstance(node, ast.IfExp):
            more = [(node.body, scope), (node.orelse, scope)]
        elif isinstance(node, ast.Call):
            helper = methods.get(ast.unparse(node.func))
            walk = ast.walk(helper) if helper else ()
            more = [(x, helper) for x in walk if isinstance(x, ast.Return)]
        elif node:
            name = ast.unparse(node)
            assigned = (x for x in ast.walk(scope) if isinstance(x, ast.Assign))
            for assignment in assigned:
                if name in map(ast.unparse, assignment.targets):
                    more.append((assignment.value, scope))
        todo += [x for x in more if x not in todo]
    return any(isinstance(node, ast.Tuple) for node, _ in todo)
