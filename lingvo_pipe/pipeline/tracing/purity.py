"""Refuses functions that would not do the same when they are run again.

The backward pass recomputes the forward pass, on whichever device and for as many
micro-batches as there are. So what is recomputed must depend on its arguments alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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

# What begins so changes a variable, but for what only gathers from it.
_WRITING = ("Assign", "Resource")
_READING = {"ResourceGather", "ResourceGatherNd"}


class Remedies(NamedTuple):
    """What to do instead: sentences.

    Attributes:
        of_reading: instead of reading a variable.
        of_writing: instead of writing one.
        of_state: instead of using stateful operations.
    """

    of_reading: str
    of_writing: str
    of_state: str


OF_LAYERS = Remedies(
    "Use theta.<name> in FProp instead of self.vars or self.theta.",
    "In FProp hand each micro-batch's share to Accumulate, and write the variable in "
    "PostTrainingStepUpdate.",
    "For random numbers use the forward context's uniform (or DropoutLayer), for "
    "statistics Accumulate.",
)
OF_LOSSES = Remedies(
    "Weights belong into layers: compute what needs them in the last cell.",
    "Return statistics as metrics, or make them in the last cell.",
    "Draw random numbers by the forward context's uniform, or in the last cell; return "
    "statistics as metrics.",
)


def check_pure(
    graph: Any,
    where: str,
    variables: Mapping[str, tf.Variable],
    remedies: Remedies = OF_LAYERS,
) -> None:
    """Checks a function just traced.

    Args:
        graph: its graph.
        where: what the function is, as in "FProp of the FCLayer at model/dense".
        variables: the model's, by path.
        remedies: what to do instead.

    Raises:
        ValueError: if it uses tensors or variables other than its arguments, or
            stateful operations.
    """
    paths = [
        path
        for path, variable in variables.items()
        if any(variable.handle is x for x in graph.external_captures)
    ]
    types = _operation_types(graph)
    _check_no_writing(types, paths, where, remedies)
    if paths:
        raise ValueError(
            "A pipeline's functions must be given weights as arguments; "
            f"{where} reads the variables {paths} directly. {remedies.of_reading}"
        )
    _check_captures(graph.external_captures, where)
    _check_stateless(graph, types, where, remedies)


def _operation_types(graph: Any) -> set[str]:
    """The types of all operations, those in functions too."""
    library = graph.as_graph_def().library.function
    types = {op.type for op in graph.get_operations()}
    types.update(node.op for function in library for node in function.node_def)
    return types - {function.signature.name for function in library}


def _check_no_writing(
    types: set[str], paths: list[str], where: str, remedies: Remedies
) -> None:
    writing = [x for x in sorted(types - _READING) if x.startswith(_WRITING)]
    if writing:
        of_whom = paths or "that are none of the model's"
        raise ValueError(
            "A pipeline's functions must not write variables, for they run for each "
            f"micro-batch, and once more in the backward pass; {where} has the "
            f"operations {writing} on variables {of_whom}. {remedies.of_writing}"
        )


def _check_captures(captured: list[tf.Tensor], where: str) -> None:
    if captured:
        found = [
            "a variable or table"
            if x.dtype == tf.resource
            else f"{x.dtype.name} {x.shape}"
            for x in captured
        ]
        raise ValueError(
            f"A pipeline's functions must use nothing but their arguments; {where} "
            f"uses what was made elsewhere: {', '.join(found)}. Keep constants as "
            "numpy arrays, make state by CreateVariable, and hand over what changes "
            "among the inputs or targets."
        )


def _check_stateless(
    graph: Any, types: set[str], where: str, remedies: Remedies
) -> None:
    stateful = [
        op_type
        for op_type in sorted(types - _HARMLESS)
        if graph.op_def_for_type(op_type).is_stateful
    ]
    if stateful:
        raise ValueError(
            "A pipeline's functions must be pure, for they run a second time in the "
            f"backward pass; {where} has the stateful operations {stateful}. "
            f"{remedies.of_state}"
        )
