"""Rejects functions that might not give the same results in a rerun.

The backward pass may recompute the forward pass, on any device and for any number of
micro-batches. So the forward pass must depend only on its arguments.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.tracing.cut import captured_constants

# Stateful operations that are allowed: they only call functions, or report, and may run
# once more in the recomputation.
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

# Operations that check values. XLA leaves them out.
_CHECKING = {"Assert", "CheckNumerics", "CheckNumericsV2"}

# Operations with these prefixes change a variable, except those that gather from it.
_WRITING = ("Assign", "Resource")
_READING = {"ResourceGather", "ResourceGatherNd"}

# Parts of errors about variables.
CAPTURED_VARIABLE = "a variable or table"
OUTSIDE_MODEL = "from outside the model"


class Remedies(NamedTuple):
    """Sentences on what to do instead of using variables or other state."""

    of_reading: str
    of_writing: str
    of_state: str


OF_LAYERS = Remedies(
    "Use theta.<name> in FProp instead of self.vars or self.theta.",
    "In FProp pass each micro-batch's share to Accumulate, and write the variable in "
    "PostTrainingStepUpdate.",
    "For random numbers use the forward context's uniform (or DropoutLayer), for "
    "statistics Accumulate.",
)
OF_LOSSES = Remedies(
    "Weights belong in layers: compute terms with weights in the last cell.",
    "Return statistics as metrics, or compute them in the last cell.",
    "Draw random numbers by the forward context's uniform, or in the last cell; return "
    "statistics as metrics.",
)


def check_pure(
    graph: Any,
    location: str,
    variables: Mapping[str, tf.Variable],
    remedies: Remedies = OF_LAYERS,
) -> None:
    """Checks that a traced function depends only on its arguments, and writes nothing.

    Raises:
        ValueError: if it uses other tensors or variables, or stateful operations.
    """
    paths = [
        path
        for path, variable in variables.items()
        if any(variable.handle is x for x in graph.external_captures)
    ]
    types = _operation_types(graph)
    writing = [x for x in sorted(types - _READING) if x.startswith(_WRITING)]
    if writing:
        raise UserValueError(
            path=location,
            expected="no operation that writes a variable, because it would run for "
            "each micro-batch, and again in the backward pass",
            got=Words(f"{writing} on variables {paths or OUTSIDE_MODEL}"),
            hint=remedies.of_writing,
        )
    if paths:
        raise UserValueError(
            path=location,
            expected="weights as arguments",
            got=Words(f"direct reads of the variables {paths}"),
            hint=remedies.of_reading,
        )
    constants = captured_constants(graph)
    captured = [
        CAPTURED_VARIABLE if x.dtype == tf.resource else f"{x.dtype.name} {x.shape}"
        for x, inner in graph.captures
        if not any(inner is y for y, _ in constants)
    ]
    if captured:
        raise UserValueError(
            path=location,
            expected="a function of only its arguments",
            got=Words(f"tensors made elsewhere: {', '.join(captured)}"),
            hint="Make state by CreateVariable, and pass changing values among the "
            "inputs or targets.",
        )
    stateful = [
        op_type
        for op_type in sorted(types - _HARMLESS)
        if graph.op_def_for_type(op_type).is_stateful
    ]
    if stateful:
        names = {op.type: op.name for op in reversed(graph.get_operations())}
        shown = [names.get(op_type, op_type) for op_type in stateful]
        raise UserValueError(
            path=location,
            expected="a pure function, because it runs again in the backward pass",
            got=Words(f"the stateful operations {shown}"),
            hint=remedies.of_state,
        )


def checks_values(graph: Any) -> bool:
    """Returns whether a graph has operations that check values, such as assertions."""
    return not _CHECKING.isdisjoint(_operation_types(graph))


def _operation_types(graph: Any) -> set[str]:
    library = graph.as_graph_def().library.function
    types = {op.type for op in graph.get_operations()}
    types.update(node.op for function in library for node in function.node_def)
    return types - {function.signature.name for function in library}
