"""The variables of Keras layers. Each kind of variable follows its own rule.

kind         while a micro-batch runs              after the step
weight       is read, must not be written          is updated by the optimizer
frozen       is read, is not written               stays
seed         gives the micro-batch's rows of the   advances by the draws of one pass
             mini-batch's random numbers           through the model
moments      read as 0, so that (1 - momentum)     are moving averages of moments of the
             times the micro-batch's moments       mini-batch; micro-batches count by
             are written                           rows, or by the mask if there is one
state        is read and written                   is the written values' mean, by rows
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.keras.cells.calls import GraphTensor, KerasCall
from lingvo_pipe.keras.cells.private_names import (
    compute_output_spec,
    flat_layers,
    forget_losses,
    run_operation,
)
from lingvo_pipe.keras.cells.row_seed import (
    UNKNOWN,
    SeedState,
    is_unordered,
    noted_draws,
)
from lingvo_pipe.layers.core.forward_context import control_flow, graph_of_call

_SEED_NAME = "seed_generator_state"
# Sizes for which draws are noted: two numbers of examples, and the size of all other
# unknown dimensions. If a layer does not take sizes, they stay unknown (None).
_TRIALS = (((120, 240), 16), ((120, 240), None), ((None, None), None))


def is_seed(variable: keras.Variable) -> bool:
    """Returns whether a variable is the state of a SeedGenerator."""
    return variable.name == _SEED_NAME


@dataclass(frozen=True)
class VariableKind:
    """The rule that a variable follows."""

    name: str  # weight, frozen, seed, mean, variance or state.
    norm: Any = None  # The batch normalization of a mean or variance.
    # For a variance, the position of the mean among the cell's variables.
    mean: int | None = None

    @property
    def momentum(self) -> float:
        """The momentum of a mean or variance, which may change after a compile."""
        return 0.0 if self.norm is None else self.norm.momentum

    @property
    def is_summed(self) -> bool:
        """True if its next value is computed from a sum over micro-batches."""
        return self.name in ("mean", "variance", "state")


class CellScope(keras.StatelessScope):
    """Values of a cell's variables, with `writes` and `reads` counted by id."""

    def __init__(
        self,
        values: Mapping[int, Any],
        variables: Sequence[keras.Variable],
        first_row: Any = None,
        num_rows: int = UNKNOWN,
    ):
        """Takes values by the ids of variables. For the rows see `RowSeed`."""
        super().__init__(collect_losses=True)
        self.writes: collections.Counter[int] = collections.Counter()
        self.reads: collections.Counter[int] = collections.Counter()
        self._rows, self._graph = (first_row, num_rows), graph_of_call()
        self._seeds = {id(v) for v in variables if is_seed(v)}
        if first_row is None:
            self._seeds.clear()
        for variable in variables:
            self.set_value(variable, values[id(variable)])

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Sets a variable's value, and counts the write."""
        variable, value = update
        if is_seed(variable) and control_flow(self._graph):
            raise UserValueError(
                path=f"variable {variable.path!r}",
                expected="random numbers drawn outside of loops and conditions",
                got=Words("a draw in one, which all iterations would share"),
                hint="Draw before it. An RNN of a cell that draws takes unroll=True.",
            )
        if id(variable) in self._seeds and is_unordered(value):
            raise UserValueError(
                path=f"variable {variable.path!r}",
                expected="a seed that counts its draws",
                got=Words("SeedGenerator.next(ordered=False)"),
                hint="Call next(), or pass the generator itself as the seed.",
            )
        self.writes[id(variable)] += 1
        if tf.is_tensor(value):  # As in Keras, a variable has no gradient to its value.
            value = tf.stop_gradient(value)
        self.set_value(variable, value)

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Returns a variable's value, and counts the read."""
        self.reads[id(variable)] += 1
        return super().get_current_value(variable)

    def set_value(self, variable: keras.Variable, value: Any) -> None:
        """Sets the value that layers read."""
        if id(variable) in self._seeds:
            value = SeedState(tf.convert_to_tensor(value), *self._rows)
        super().add_update((variable, value))


def kinds_of(
    variables: Sequence[keras.Variable], layers: Sequence[Any], written: Collection[int]
) -> list[VariableKind]:
    """Returns each variable's kind. `written` are the ids that the layers may write."""
    layers_by_id = {id(x): x for x in layers if isinstance(x, keras.Layer)}
    below = [x for layer in layers_by_id.values() for x in flat_layers(layer)]
    place = {id(v): i for i, v in enumerate(variables)}
    kinds: dict[int, VariableKind] = {}
    for layer in below:
        # A norm within a layer may run as in evaluations, and not write its averages.
        norm = is_norm(layer) and layer.trainable and id(layer.moving_mean) in written
        if norm and layer.momentum < 1.0:  # With 1, averages stay.
            mean = place[id(layer.moving_mean)]
            kinds[id(layer.moving_mean)] = VariableKind("mean", layer)
            kinds[id(layer.moving_variance)] = VariableKind("variance", layer, mean)
    weights = _weight_ids(below)
    for v in variables:
        if v.trainable:
            kinds[id(v)] = VariableKind("weight")
        elif is_seed(v):
            kinds[id(v)] = VariableKind("seed")
        elif id(v) not in kinds:
            is_state = id(v) in written and id(v) not in weights
            kinds[id(v)] = VariableKind("state" if is_state else "frozen")
    return [kinds[id(v)] for v in variables]


def is_norm(layer: Any) -> bool:
    """Returns whether a layer averages moments by Keras's own rule."""
    kind = keras.layers.BatchNormalization
    return isinstance(layer, kind) and type(layer).call is kind.call


def _weight_ids(layers: Sequence[Any]) -> set[int]:
    """Returns the ids of variables that were made as weights, frozen or not."""
    return {id(v) for x in layers for v in x._trainable_variables}


def mask_weights(layer: Any, masks: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Returns the weight of a batch normalization's moments by its moving mean's id.

    The weight, float64 `[]`, is the sum of the first mask. Without masks, returns {}.
    """
    inner = flat_layers(layer) if masks and isinstance(layer, keras.Layer) else []
    norms = list(filter(is_norm, inner))
    if norms and norms != [layer]:
        raise UserValueError(
            path=f"layer {layer.name!r}",
            expected="batch normalization without a mask, or as a layer of the model",
            got=Words(f"{norms[0].name!r} within the layer, and a mask"),
            hint="Call it in the model itself, or stop the mask before.",
        )
    return {
        id(norm.moving_mean): tf.reduce_sum(tf.cast(masks[0], tf.float64))
        for norm in norms
    }


@dataclass(frozen=True)
class RandomDraws:
    """Random draws of a call."""

    counts: collections.Counter[int]  # How often it draws, by the seeds' ids.
    belong: tuple[bool, ...]  # Whether each draw belongs to the rows, in order.
    # Whether the number of examples changes a dimension other than a draw's first.
    are_elsewhere: bool


def draws_of(call: KerasCall, training: bool) -> RandomDraws:
    """Returns a call's random draws.

    Raises:
        ValueError: if the number of draws depends on the number of examples.
    """
    seeds = [v for v in call.variables if is_seed(v)]
    if not seeds:
        return RandomDraws(collections.Counter(), (), are_elsewhere=False)
    for numbers, size in _TRIALS:
        try:
            (writes, shapes), (_, other_shapes) = (
                _traced_draws(call, training, x, size) for x in numbers
            )
        except Exception:  # The layer may not take these sizes.
            if None in numbers:
                raise
        else:
            break
    if len(shapes) != len(other_shapes):
        raise UserValueError(
            path=f"layer {call.operation.name!r}",
            expected="as many random draws for any number of examples",
            got=Words(f"{len(shapes)} and {len(other_shapes)} for {numbers}"),
            hint="Draw numbers of shape [examples, ...] at once.",
        )
    # For each draw, which dimensions depend on the examples.
    depend = [
        [x != y for x, y in zip(a, b, strict=True)]
        for a, b in zip(shapes, other_shapes, strict=True)
    ]
    return RandomDraws(
        collections.Counter({id(v): writes[id(v)] for v in seeds}),
        tuple(a[0] is None or x[0] for a, x in zip(shapes, depend, strict=True)),
        any(any(x[1:]) for x in depend),
    )


def written_by(call: KerasCall) -> Collection[int]:
    """Returns the ids of the variables that a call may write in training.

    Traces the call if one of its states is a matrix, such as a quantized kernel, or if
    it is a layer with batch normalization within. Otherwise, or if it cannot be traced,
    returns the ids of all its states.
    """
    layers = flat_layers(call.operation) if call.variables else []
    weights = _weight_ids(layers)
    states = [v for v in call.variables if not (id(v) in weights or is_seed(v))]
    is_traced = any(len(v.shape) > 1 for v in states)
    is_traced |= not is_norm(call.operation) and any(map(is_norm, layers))
    for (num_examples, _), size in _TRIALS if is_traced else ():
        with contextlib.suppress(Exception):  # The layer may not take these sizes.
            return _traced_draws(call, True, num_examples, size)[0]
    return set(map(id, states))


def _traced_draws(
    call: KerasCall, training: bool, num_examples: int | None, size: int | None
) -> tuple[collections.Counter[int], list[list[int | None]]]:
    """Returns the number of writes by variables' ids, and the shape of each draw.

    A draw writes its seed. `num_examples` and `size` take the place of unknown
    dimensions.
    """
    writes: collections.Counter[int] = collections.Counter()
    seeds = [v for v in call.variables if is_seed(v)]

    def run(args: Any, kwargs: Any) -> Any:
        values = {id(v): tf.zeros(v.shape, v.dtype) for v in seeds}
        scope = CellScope(values, seeds, tf.zeros([], tf.int64))
        # At the root, TensorFlow allows no scope that begins with an underscore.
        with tf.name_scope("draws"), scope:
            outputs = run_operation(call.operation, training, args, kwargs, call.models)
        writes.update(scope.writes)
        return outputs

    def spec(x: GraphTensor) -> keras.KerasTensor:
        sizes = [size if n is None else n for n in x.spec.shape]
        if x.row_axis is not None:
            sizes[x.row_axis] = num_examples
        return keras.KerasTensor(sizes, x.spec.dtype)

    with noted_draws() as shapes:
        compute_output_spec(run, *call.arguments(spec))
    forget_losses(call.operation)
    return writes, [x.as_list() for x in shapes]
