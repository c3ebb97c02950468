"""The workspace of a layer: its own tensors while it runs, from its graphs."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.pipeline.memory.call_bytes import Workspace
from lingvo_pipe.pipeline.tracing.cut import CutFunction
from lingvo_pipe.pipeline.tracing.phases import Function, Phases
from lingvo_pipe.pipeline.tracing.views import VIEWS

# Operations whose output cannot reuse an input's memory: they read inputs to the end.
_NOT_IN_PLACE = re.compile("MatMul|Einsum|Conv|Pool|Transpose|Gather|Reverse")


class Rows(NamedTuple):
    """Numbers of rows of a micro-batch: traced, and to count bytes for.

    Every dimension that is a multiple of `traced` is taken for rows, unless it is 1.
    """

    traced: int = 1
    counted: int = 1

    def shape(self, x: Any) -> tuple[int, ...] | None:
        """Returns the shape of a tensor for the counted rows, or None if unknown."""
        if not x.shape.is_fully_defined():
            return None
        if self.traced == self.counted:
            return tuple(x.shape)
        traced, counted = self
        return tuple(n if n % traced else n // traced * counted for n in x.shape)


_AS_TRACED = Rows()


def workspace_of(phases: Phases, rows: Rows = _AS_TRACED) -> Workspace:
    """Returns the workspace of a layer.

    Operations run in the graph's order, each as soon as its inputs exist. A tensor
    lives from its operation until its last use. An output that reuses an input's
    memory, such as a sum, counts as 0.
    """
    shared = [*phases.cast_weights, *phases.call_context]
    seeds, late = phases.output_gradients, phases.weight_residuals
    backward_specs = [*shared, *phases.residuals, *seeds]
    live = num_bytes(seeds, rows)

    def moments(
        function: Function, specs: list[Any], num_residuals: int, live: int = 0
    ) -> tuple[int, ...]:
        return _Graph(function, specs, rows).bytes_by_operation(num_residuals, live)

    return Workspace(
        forward=moments(
            phases.forward(stashes=True), [*shared, *phases.args], len(phases.residuals)
        ),
        backward=moments(phases.backward(), backward_specs, 0, live),
        input_backward=moments(
            phases.input_backward(), backward_specs, len(late), live
        ),
        weight_backward=moments(phases.weight_backward(), [*shared, *late], 0),
    )


def num_bytes(specs: Iterable[Any], rows: Rows = _AS_TRACED) -> int:
    """Returns the bytes of tensors, where a tensor of unknown size counts as 0."""
    return sum(
        math.prod(shape) * spec.dtype.size
        for spec in specs
        if (shape := rows.shape(spec)) is not None
    )


class _Graph:
    """The operations of a function in the order in which they run, and its outputs."""

    def __init__(self, function: Function, specs: Sequence[Any], rows: Rows):
        self._rows = rows
        if isinstance(function, CutFunction):
            self._operations, self._outputs = function.in_order(), function.outputs
        else:  # XLA compiles it.
            graph = tf.function(function, autograph=False).get_concrete_function(*specs)
            self._outputs = graph.graph.outputs
            operations = graph.graph.get_operations()
            self._operations = [op for op in operations if op.type != "Placeholder"]
        self._computed = set(self._operations)
        self._sizes: dict[Any, int] = {}

    def bytes_by_operation(self, num_residuals: int, live: int) -> tuple[int, ...]:
        """Returns bytes during each operation, without the residuals, the last outputs.

        Adds the `live` bytes of tensors that exist throughout.
        """
        outputs, origin = self._outputs, self._origin
        operations = [op for op in self._operations if op.type not in VIEWS]
        uses = Counter(origin(x).ref() for op in operations for x in op.inputs)
        uses.update(origin(x).ref() for x in outputs)  # They live until the end.
        last = outputs[len(outputs) - num_residuals :]
        residuals = {x.ref(): x for x in map(origin, last) if self._is_allocated(x)}
        live -= self._bytes(residuals.values())
        bytes_by_operation = []
        for op in operations:
            freed = []
            for x in map(origin, op.inputs):
                uses[x.ref()] -= 1
                if not uses[x.ref()] and self._is_allocated(x):
                    freed.append(x)
            if not _is_constant(op):
                bytes_by_operation.append(live + self._new_bytes(op, freed))
            live += self._bytes(
                x for x in op.outputs if uses[x.ref()] and self._is_allocated(x)
            )
            live -= self._bytes(freed)
        return tuple(bytes_by_operation) or (0,)

    def _origin(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the computed tensor or argument that this one is a view of."""
        while x.op in self._computed and x.op.type in VIEWS:
            x = x.op.inputs[0]
        return x

    def _is_allocated(self, x: tf.Tensor) -> bool:
        """Returns whether a tensor takes memory on the device, beside arguments.

        Scalar and integer constants, such as sizes, are on the host.
        """
        if x.op.type in _CONSTANTS:
            is_large = x.dtype.is_floating and x.shape.rank > 0
            return is_large and x.op in self._computed
        return x.op in self._computed

    def _new_bytes(self, op: tf.Operation, freed: Sequence[tf.Tensor]) -> int:
        """Returns the bytes of outputs that reuse no memory of a freed input."""
        new_bytes = self._bytes(op.outputs)
        if _NOT_IN_PLACE.search(op.type):
            return new_bytes
        reusable = [(self._rows.shape(x), x.dtype) for x in freed]
        for x in op.outputs:
            if (spec := (self._rows.shape(x), x.dtype)) in reusable:
                reusable.remove(spec)
                new_bytes -= self._bytes([x])
        return new_bytes

    def _bytes(self, tensors: Iterable[tf.Tensor]) -> int:
        return sum(map(self._size, tensors))

    def _size(self, x: tf.Tensor) -> int:
        if (size := self._sizes.get(x.ref())) is None:
            size = num_bytes([x], self._rows) if self._is_sized(x) else 0
            self._sizes[x.ref()] = size
        return size

    def _is_sized(self, x: tf.Tensor) -> bool:
        """Returns whether a tensor's size is known without the values of arguments."""
        arguments = (y.op for y in x.op.inputs if y.op not in self._computed)
        takes_shape = any(op.type in ("Shape", "ShapeN") for op in arguments)
        return x.dtype not in (tf.variant, tf.resource) and not takes_shape


# A placeholder among a function's operations is a constant from outside.
_CONSTANTS = ("Const", "Placeholder")


def _is_constant(op: tf.Operation) -> bool:
    """Returns whether it makes a constant, perhaps by filling."""
    is_filled = op.type == "Fill" and all(x.op.type in _CONSTANTS for x in op.inputs)
    return is_filled or op.type in _CONSTANTS
