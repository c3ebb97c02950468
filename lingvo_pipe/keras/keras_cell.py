"""KerasCell: consecutive calls of a Keras model as one cell of a pipeline.

Shapes: b rows in a micro-batch. A cell takes and returns pairs (value, mask), flat; a
mask is None where Keras has none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.keras.cell_calls import CellCalls, LocalCall, Position
from lingvo_pipe.keras.placement import placed, shared
from lingvo_pipe.keras.private_names import (
    forget_losses,
    get_mask,
    global_seed,
    run_operation,
)
from lingvo_pipe.keras.row_seed import UNKNOWN
from lingvo_pipe.keras.rows import rows_in_place, with_mask
from lingvo_pipe.keras.state import CellScope
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext, current_context
from lingvo_pipe.nested_map import NestedMap


class KerasCell(BaseLayer):
    """Runs calls of Keras layers, whose variables it shares.

    Variables are named v0, v1 ... in the order of `CellCalls.variables`.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns params for the calls."""
        p = super().Params()
        p.Define("calls", None, "The calls, a CellCalls.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._calls: CellCalls = self.params.calls
        self._global_seed = global_seed()
        for i, (variable, kind) in enumerate(
            zip(self._calls.variables, self._calls.kinds, strict=True)
        ):
            owned = self._calls.owned[i]
            place = functools.partial(placed if owned else shared, variable)
            self.AddVariable(f"v{i}", place)
            if kind.is_summed:
                self.RegisterAccumulator(f"sum{i}", list(variable.shape), tf.float64)
            if kind.name == "mean":
                shape = list(variable.shape)
                self.RegisterAccumulator(f"square{i}", shape, tf.float64)
        if self.own_accumulators:
            self.RegisterAccumulator("count", [], tf.float64)

    def CastTheta(self, values: NestedMap) -> NestedMap:
        """Returns the values in their own dtypes: Keras casts by its own policies."""
        return NestedMap({k: tf.convert_to_tensor(values[k]) for k in self.vars})

    def FProp(self, theta: NestedMap, *given: Any) -> tuple[Any, ...]:
        """Runs the calls.

        Args:
            theta: values of the variables.
            *given: pairs (value, mask) of the values that the cell is given.

        Returns:
            Pairs (value, mask) of the values that it passes on.
        """
        calls, context = self._calls, current_context()
        values = self._values(given, context)
        known = [
            self._given(i, theta[f"v{i}"], context) for i in range(len(calls.variables))
        ]
        unseeded = self._global_seed
        given_values = {id(v): x for v, x in zip(calls.variables, known, strict=True)}
        scope = CellScope(
            {**given_values, id(unseeded): tf.zeros(unseeded.shape, tf.int64)},
            [*calls.variables, unseeded],
            None if context.do_eval else context.first_example,
            UNKNOWN if context.may_have_padding_rows else context.num_rows or UNKNOWN,
        )
        with scope:
            for call in calls.calls:
                values += _made(call, values, training=not context.do_eval)
                if scope.writes[id(unseeded)]:
                    raise _unseeded(call.operation.name)
        for layer in calls.layers:
            forget_losses(layer)
        if not context.do_eval:
            self._hand_over(scope, context)
        if scope.losses:  # Each is a mean over the micro-batch.
            total = tf.add_n([tf.cast(x, tf.float32) for x in scope.losses])
            self.AddLoss("keras_losses", tf.fill([context.num_rows], total))
        return tuple(
            x
            for i in calls.kept
            for x in _with_padding_rows(values[i], calls.has_rows[i], context)
        )

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        """Moves seeds on, and averages what the micro-batches have written."""
        for i, (kind, draws) in enumerate(
            zip(self._calls.kinds, self._calls.draws, strict=True)
        ):
            variable = self.vars[f"v{i}"]
            with tf.device(variable.device):
                if draws:
                    variable.assign_add(tf.constant([0, draws], variable.dtype))
                if kind.is_summed:
                    new = self._next_state(i, accumulated)
                    variable.assign(tf.cast(new, variable.dtype))

    def _values(self, given: Sequence[Any], context: ForwardContext) -> list[Any]:
        """Returns the given values, only their examples, with their masks."""
        values = []
        for x, mask, has_rows in zip(
            given[::2], given[1::2], self._calls.has_rows, strict=False
        ):
            if has_rows and context.may_have_padding_rows:
                x = x[: context.num_examples]
                mask = None if mask is None else mask[: context.num_examples]
            values.append(with_mask(x, mask))
        return values

    def _given(self, i: int, value: tf.Tensor, context: ForwardContext) -> tf.Tensor:
        kind = self._calls.kinds[i].name
        if kind in ("mean", "variance") and not context.do_eval:
            return tf.zeros_like(value)
        if kind == "seed" and self._calls.earlier_draws[i]:
            return value + tf.constant([0, self._calls.earlier_draws[i]], value.dtype)
        return value

    def _hand_over(self, scope: CellScope, context: ForwardContext) -> None:
        """Accumulates what the calls have written."""
        is_padded = context.may_have_padding_rows
        rows = context.num_examples if is_padded else context.num_rows
        count = tf.cast(rows, tf.float64)
        for i, (v, kind) in enumerate(
            zip(self._calls.variables, self._calls.kinds, strict=True)
        ):
            if kind.is_summed:
                new = tf.cast(scope.get_current_value(v), tf.float64)
                if kind.name != "state":
                    new /= 1.0 - kind.momentum
                self.Accumulate(f"sum{i}", new * count)
                if kind.name == "mean":
                    self.Accumulate(f"square{i}", new**2 * count)
            elif kind.name != "seed" and scope.writes[id(v)]:
                raise UserValueError(
                    path=f"variable {v.path!r}",
                    expected="weights that only the optimizer changes",
                    got="a layer that writes it in its call",
                    hint="Micro-batches would each write another value. Leave the "
                    "layer out, or compute the value without storing it.",
                )
        if self.own_accumulators:
            self.Accumulate("count", count)

    def _next_state(self, i: int, accumulated: NestedMap) -> tf.Tensor:
        """Returns a variable's next value, [...] float64."""
        kind = self._calls.kinds[i]
        mean = accumulated[f"sum{i}"] / accumulated.count
        if kind.name == "state":
            return mean
        if kind.name == "variance":
            # Var = E[var in micro-batches] + Var[means of micro-batches].
            square = accumulated[f"square{kind.mean}"] / accumulated.count
            mean += square - (accumulated[f"sum{kind.mean}"] / accumulated.count) ** 2
        before = tf.cast(self.vars[f"v{i}"], tf.float64)
        return before * kind.momentum + mean * (1.0 - kind.momentum)


def _unseeded(name: str) -> UserValueError:
    return UserValueError(
        path=f"layer {name!r}",
        expected="random numbers from a keras.random.SeedGenerator of the layer",
        got="a draw from Keras's global seed",
        hint="Create self.seed_generator = keras.random.SeedGenerator(seed) in the "
        "layer's __init__, and pass seed=self.seed_generator.",
    )


def _made(call: LocalCall, values: Sequence[Any], training: bool) -> list[Any]:
    """Returns the outputs of a call, flat."""
    args, kwargs = tree.map_structure(
        lambda x: values[x] if isinstance(x, Position) else x,
        (call.args, call.kwargs),
    )
    made = tree.flatten(run_operation(call.operation, training, args, kwargs))
    if len(made) != call.num_made:
        raise UserValueError(
            path=f"layer {call.operation.name!r}",
            expected=f"{call.num_made} outputs, as when the model was built",
            got=len(made),
        )
    return made


def _with_padding_rows(
    x: Any, has_rows: bool, context: ForwardContext
) -> tuple[Any, Any]:
    """Returns a value and its mask with as many rows as the micro-batch."""
    mask = get_mask(x)
    if not (has_rows and context.may_have_padding_rows):
        return x, mask
    num_rows = context.num_rows or 0  # A pipeline's context knows it.
    padded_mask = None if mask is None else rows_in_place(mask, 0, num_rows)
    return rows_in_place(x, 0, num_rows), padded_mask
