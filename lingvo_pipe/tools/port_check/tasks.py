"""The search for what will not port in tasks. Lingvo's have layers as children."""

import ast
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


def task_problems(node: ast.ClassDef, cls: Any, is_base: bool) -> Iterator[Problem]:
    """Yields the problems of a task's class. A base of others need not be complete."""
    missing = [x for x in _NEEDED if getattr(cls, x) is getattr(BaseTask, x)]
    if missing and not is_base:
        needed = "; ".join(_NEEDED[name] for name in missing)
        yield node, f"no {', '.join(missing)}", f"Define {needed}."
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
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
            if in_loss and isinstance(child, ast.Return) and _is_pair(method, child):
                yield child, ast.unparse(child), _PAIR


def _is_pair(method: ast.FunctionDef, returned: ast.Return) -> bool:
    """Returns whether a tuple is returned, or a name to which one is assigned."""
    assigned = (x for x in ast.walk(method) if isinstance(x, ast.Assign))
    name = ast.unparse(returned).removeprefix("return ")
    return isinstance(returned.value, ast.Tuple) or any(
        isinstance(x.value, ast.Tuple) and name in map(ast.unparse, x.targets)
        for x in assigned
    )
