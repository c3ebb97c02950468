"""Whether two traces are the same but for the names of their operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.optional_nest import map_present
from lingvo_pipe.pipeline.tracing.trace import Trace

# Names: of what made a gradient, which is in the trace, and of neighbours on a device.
_NAMING = ("_gradient_op_type", "_class")

# What a trace records that is no tensor.
_FLAGS = ("uses", "wants")


def same_traces(one: Trace, other: Trace) -> bool:
    """Whether they compute the same by the same operations in the same order.

    Those that call functions of their own, such as branches, pass for different.
    """
    return _without_names(one) == _without_names(other)


def _without_names(trace: Trace) -> tuple[list[Any], list[Any]]:
    """The operations, and where what the trace records stands among them."""
    operations = trace.graph.get_operations()
    numbers = {op: number for number, op in enumerate(operations)}

    def place(x: Any) -> tuple[int, int]:
        if isinstance(x, tf.Operation):
            return numbers[x], -1
        return numbers[x.op], x.value_index

    recorded = vars(trace).items()
    return (
        [
            (
                op.type,
                op.device,
                _attributes(op),
                [place(x) for x in op.inputs],
                [numbers[before] for before in op.control_inputs],
            )
            for op in operations
        ],
        [
            (name, value if name in _FLAGS else map_present(place, value))
            for name, value in recorded
            if name != "graph"
        ],
    )


def _attributes(op: tf.Operation) -> dict[str, bytes]:
    return {
        name: value.SerializeToString(deterministic=True)
        for name, value in op.node_def.attr.items()
        if name not in _NAMING
    }
