"""Refuses functions that would not do the same when they are run again.

The backward pass recomputes the forward pass, on whichever device and for as many
micro-batches as there are. So what is recomputed must depend on its arguments alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

# Operations that TensorFlow calls stateful and that may be used all the same: they only
# call functions, or report. Running them once more in the recomputation is fine.
_HARMLESS = {
    "Assert",
    "Case",
    "CheckNumerics",
    "CheckNumericsV2",
    "If",
    "Placeholder",
    "PrintV2",
    "StatefulPartitionedCall",
    "While",
}


def check_pure(graph: Any, where: str, variables: Mapping[str, tf.Variable]) -> None:
    """Checks a function just traced.

    Args:
        graph: its graph.
        where: what the function is, as in "FProp of the FCLayer at model/dense".
        variables: the model's, by path.

    Raises:
        ValueError: if it uses tensors or variables other than its arguments, or
            stateful operations.
    """
    _check_captures(graph.external_captures, where, variables)
    _check_stateless(graph, where)


def _check_captures(
    captured: list[tf.Tensor], where: str, variables: Mapping[str, tf.Variable]
) -> None:
    paths = [
        path for path, v in variables.items() if any(v.handle is t for t in captured)
    ]
    if paths:
        raise ValueError(
            f"Weights must be taken from theta; {where} reads the variables {paths} "
            "directly. Use theta.<name> in FProp instead of self.vars or self.theta."
        )
    if captured:
        found = [
            "a variable or table"
            if t.dtype == tf.resource
            else f"{t.dtype.name} {t.shape}"
            for t in captured
        ]
        raise ValueError(
            f"A pipeline's functions must use nothing but their arguments; {where} "
            f"uses what was made elsewhere: {', '.join(found)}. Keep constants as "
            "numpy arrays, make state by CreateVariable, and hand over what changes "
            "among the inputs or targets."
        )


def _check_stateless(graph: Any, where: str) -> None:
    library = graph.as_graph_def().library.function
    types = {op.type for op in graph.get_operations()}
    types.update(node.op for function in library for node in function.node_def)
    functions = {function.signature.name for function in library}
    stateful = [
        op_type
        for op_type in sorted(types - _HARMLESS - functions)
        if graph.op_def_for_type(op_type).is_stateful
    ]
    if stateful:
        raise ValueError(
            "A pipeline's functions must be pure, for they run a second time in the "
            f"backward pass; {where} has the stateful operations {stateful}. For "
            "random numbers use the forward context's uniform (or DropoutLayer), for "
            "statistics Accumulate."
        )
