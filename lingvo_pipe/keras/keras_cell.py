"""KerasCell: a cell that runs calls of a Keras model on flat `triples` of b rows."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.keras.cells import private_names
from lingvo_pipe.keras.cells.calls import GraphTensor, KerasCall
from lingvo_pipe.keras.cells.model_cells import CellCalls, CellVariable
from lingvo_pipe.keras.cells.model_function import built_model
from lingvo_pipe.keras.cells.placement import created, placed
from lingvo_pipe.keras.cells.refusals import no_other_variables
from lingvo_pipe.keras.cells.row_seed import UNKNOWN, known_draws
from lingvo_pipe.keras.cells.state import CellScope, mask_weights
from lingvo_pipe.keras.cells.triples import all_attached, rows_in_place, triple
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.construction import resolve_params
from lingvo_pipe.layers.core.forward_context import ForwardContext, current_context
from lingvo_pipe.nested_map import NestedMap

_HINT = (
    "Make them by self.add_weight, and make layers attributes of layers. A tf.function "
    "that has run before takes weights as arguments. Metrics belong in compile."
)


class KerasCell(BaseLayer):
    """A cell that runs calls of Keras layers, with their variables or with copies."""

    STATE_HINT = (
        "Draw random numbers by keras.random with a SeedGenerator of the layer, and "
        "apply functions of Python and NumPy to the dataset, before fit."
    )

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        calls = "The calls, a CellCalls; if None, of a cell of `model`."
        p.Define("calls", None, calls)
        p.Define(
            "model",
            None,
            "Function that returns a Sequential or functional Keras model, of the top "
            "level of a module.",
        )
        p.Define("arguments", {}, "The function's arguments, by name.")
        p.Define("index", 0, "Which of the model's cells it is.")
        return p

    def __init__(self, params: InstantiableParams):
        # From here on, `calls` replaces the model, its arguments and the index.
        p = resolve_params(params, self._parent).Copy()
        calls = _calls_of(p)
        if not calls.shares_variables:
            _check_unset(p)
        super().__init__(p.Set(calls=calls, model=None, arguments={}, index=0))
        self._calls = calls
        self._global_seed = private_names.global_seed()
        create = placed if calls.shares_variables else created
        for i, v in enumerate(calls.variables):
            self.AddVariable(v.name, functools.partial(create, v.variable))
            # Keras does not tell TensorFlow that a weight is frozen.
            self._trained[v.name] = v.kind.name == "weight"
            shape = list(v.variable.shape)
            if v.kind.is_summed:
                self.RegisterAccumulator(f"keras_sum{i}", shape, tf.float64)
                self.RegisterAccumulator(f"keras_count{i}", [], tf.float64)
            if v.kind.name == "mean":
                self.RegisterAccumulator(f"keras_square{i}", shape, tf.float64)

    def CastTheta(self, values: NestedMap) -> NestedMap:
        """Returns the values as they are, because Keras casts by its own policies."""
        return NestedMap({k: tf.convert_to_tensor(values[k]) for k in self.vars})

    def FProp(self, theta: NestedMap, *given: Any) -> tuple[Any, ...]:
        """Maps the triples that the cell is given to the triples that it passes on."""
        calls, context = self._calls, current_context()
        training = not context.do_eval
        values = dict(zip(calls.given, self._values(given, context), strict=True))
        unseeded = self._global_seed
        variable_values = {
            id(v.variable): _given(v, theta, context) for v in calls.variables
        }
        scope = CellScope(
            variable_values,
            [v.variable for v in calls.variables],
            context.first_example,
            UNKNOWN if context.may_have_padding_rows else context.num_rows or UNKNOWN,
        )
        scope.set_value(unseeded, tf.zeros(unseeded.shape, tf.int64))
        weights: dict[int, tf.Tensor] = {}
        losses: list[Any] = []
        with scope:
            for call, draws in zip(calls.calls, calls.draws[training], strict=True):
                layer = call.operation
                if training:
                    weights.update(mask_weights(layer, _masks(call, values)))
                with (
                    known_draws(draws.belong),
                    no_other_variables(f"layer {layer.name!r}", _HINT),
                ):
                    made = _made(call, values, training)
                values.update(zip(call.made, made, strict=True))
                losses += scope.losses  # Keras forgets a layer's at its next call.
                scope.losses.clear()
                if scope.writes[id(unseeded)]:
                    raise UserValueError(
                        path=f"layer {layer.name!r}",
                        expected="random numbers from a SeedGenerator of the layer",
                        got=Words("a draw from Keras's global seed"),
                        hint="Set self.seed_generator = keras.random.SeedGenerator("
                        "seed) in __init__, and pass seed=self.seed_generator.",
                    )
        for call in calls.calls:
            if isinstance(call.operation, keras.Layer):
                private_names.forget_losses(call.operation)
        if training:
            self._hand_over(scope, context, weights)
        losses += self._penalties(variable_values)
        if losses:  # Each is a mean over the micro-batch, or Keras's sum of a vector.
            # In float64, B gradients of 1 / B add up to 1 in all digits of a float32.
            total = tf.add_n([tf.reduce_sum(tf.cast(x, tf.float64)) for x in losses])
            rows = context.num_rows or tf.shape(given[0])[0]
            self.AddLoss("keras_losses", tf.fill([rows], total))
        return tuple(
            part
            for x in calls.kept
            for part in _padded(triple(values[x], x in calls.with_logits), x, context)
        )

    @property
    def updates_after_step(self) -> bool:
        return any(v.draws[True] or v.kind.is_summed for v in self._calls.variables)

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        """Advances the seeds, and averages the state that micro-batches wrote."""
        for i, v in enumerate(self._calls.variables):
            variable = self.vars[v.name]
            with tf.device(variable.device):
                if v.draws[True]:
                    variable.assign_add(tf.constant([0, v.draws[True]], variable.dtype))
                if v.kind.is_summed:
                    state = self._next_state(i, accumulated)
                    variable.assign(tf.cast(state, variable.dtype))

    def _penalties(self, values: Mapping[int, Any]) -> list[Any]:
        """Returns the weights' penalties, or [] if PipelinedModel adds them."""
        if self._calls.shares_variables:
            return []
        return [
            v.variable.regularizer(values[id(v.variable)])
            for v in self._calls.variables
            if v.variable.regularizer and v.owned and v.kind.name == "weight"
        ]

    def _values(self, given: Sequence[Any], context: ForwardContext) -> list[Any]:
        triples = list(given)
        for i in range(len(given)):
            if self._calls.given[i // 3].has_rows and context.may_have_padding_rows:
                triples[i] = map_present(lambda x: x[: context.num_examples], given[i])
        return all_attached(triples)

    def _hand_over(
        self, scope: CellScope, context: ForwardContext, weights: dict[int, tf.Tensor]
    ) -> None:
        is_padded = context.may_have_padding_rows
        rows = context.num_examples if is_padded else context.num_rows
        count = tf.cast(rows, tf.float64)
        for i, (v, _, kind, *_) in enumerate(self._calls.variables):
            if kind.is_summed:
                mean = i if kind.mean is None else kind.mean
                weight = weights.get(id(self._calls.variables[mean].variable), count)
                if kind.name == "state":
                    self._check_state(i, scope)
                else:
                    _check_norm(v, scope)
                new = tf.cast(scope.get_current_value(v), tf.float64)
                if kind.momentum:
                    new /= 1.0 - kind.momentum
                self.Accumulate(f"keras_sum{i}", new * weight)
                self.Accumulate(f"keras_count{i}", weight)
                if kind.name == "mean":
                    self.Accumulate(f"keras_square{i}", new**2 * weight)
            elif kind.name != "seed" and scope.writes[id(v)]:
                raise UserValueError(
                    path=f"variable {v.path!r}",
                    expected="weights that only the optimizer changes",
                    got=Words("a layer that writes it in its call"),
                    hint="Leave the layer out, or compute the value without storing "
                    "it: each micro-batch would write another one.",
                )

    def _check_state(self, i: int, scope: CellScope) -> None:
        """Refuses writes of shared state: all cells read the value before the step."""
        v = self._calls.variables[i]
        if v.is_shared and scope.writes[id(v.variable)]:
            raise UserValueError(
                path=f"variable {v.variable.path!r}",
                expected="a state that one cell reads and writes",
                got=Words("layers in several cells that have it, of which one writes"),
                hint="Call the layer once, or leave the state out. Each layer with a "
                "kernel starts a cell; summary() shows them.",
            )

    def _next_state(self, i: int, accumulated: NestedMap) -> tf.Tensor:
        kind = self._calls.variables[i].kind
        mean = self._mean(accumulated, "sum", i)
        if kind.name == "state":
            return mean
        if kind.mean is not None:
            # Var = E[var in micro-batches] + Var[means of micro-batches].
            square = self._mean(accumulated, "square", kind.mean)
            mean += square - self._mean(accumulated, "sum", kind.mean) ** 2
        before = tf.cast(self.vars[self._calls.variables[i].name], tf.float64)
        return before * kind.momentum + mean * (1.0 - kind.momentum)

    def _mean(self, accumulated: NestedMap, name: str, i: int | None) -> tf.Tensor:
        return tf.math.divide_no_nan(
            accumulated[f"keras_{name}{i}"], accumulated[f"keras_count{i}"]
        )


def _check_norm(variable: keras.Variable, scope: CellScope) -> None:
    writes, reads = scope.writes[id(variable)], scope.reads[id(variable)]
    if (writes, reads) != (1, 1):
        raise UserValueError(
            path=f"variable {variable.path!r}",
            expected="one call of a batch normalization in each cell, with "
            "training=True, and nothing else that reads its averages",
            got=Words(f"{writes} such calls, and {reads} reads"),
            hint="Use one layer for each call; in place of TimeDistributed, call the "
            "layer itself. A frozen layer's averages may be read.",
        )


def _given(v: CellVariable, theta: NestedMap, context: ForwardContext) -> tf.Tensor:
    value = theta[v.name]
    if v.kind.name in ("mean", "variance") and not context.do_eval:
        return tf.zeros_like(value)
    earlier = v.earlier_draws[not context.do_eval]
    return value + tf.constant([0, earlier], value.dtype) if earlier else value


def _masks(call: KerasCall, values: Mapping[GraphTensor, Any]) -> list[tf.Tensor]:
    mask_argument = call.kwargs.get("mask")
    if isinstance(mask_argument, GraphTensor):
        return [values[mask_argument]]
    return present([private_names.get_mask(values[x]) for x in call.taken])


def _calls_of(p: InstantiableParams) -> CellCalls:
    if p.calls is not None:
        return p.calls
    cells = built_model(p.model, p.arguments, p.random_seed).cells.cells
    return list(cells.values())[p.index]


def _check_unset(p: InstantiableParams) -> None:
    default = resolve_params(BaseLayer.Params().Set(name="default"), None)
    for name in ("dtype", "fprop_dtype", "params_init"):
        if p.Get(name) != default.Get(name):
            raise UserValueError(
                path=f"{p.name}.{name}",
                expected="None, because a Keras model's layers have their own",
                got=p.Get(name),
                hint="Set keras.config.set_dtype_policy, or the layers' initializers.",
            )


def _made(
    call: KerasCall, values: Mapping[GraphTensor, Any], training: bool
) -> list[Any]:
    path = f"layer {call.operation.name!r}"
    args, kwargs = call.arguments(values.__getitem__)
    try:
        outputs = private_names.run_operation(
            call.operation, training, args, kwargs, call.models
        )
    except ValueError as error:  # The layer took an unknown number of examples.
        raise UserValueError(
            f"{path}: {error}\n",
            path=path,
            hint="It must take any number of examples. If it merges them with another "
            "dimension, choose num_micro_batches so that it can do so in each.",
        ) from error
    outputs = tree.flatten(outputs)
    if len(outputs) != len(call.made):
        raise UserValueError(
            path=path,
            expected=f"{len(call.made)} outputs, as when the model was built",
            got=Words(f"{len(outputs)}"),
        )
    return outputs


def _padded(parts: Sequence[Any], x: GraphTensor, context: ForwardContext) -> Any:
    """Pads a triple with zeros to the micro-batch's rows, if `x` has rows."""
    if x.row_axis is None or not context.may_have_padding_rows:
        return parts
    if not x.has_rows:
        raise UserValueError(
            path=f"a value of shape {list(x.spec.shape)} between two cells",
            expected="examples in the first dimension, or mini-batches that M divides",
            got=Words(f"examples in dimension {x.row_axis}, and fewer of them"),
            hint="Give mini-batches of one size, such as by drop_remainder=True.",
        )
    num_rows = context.num_rows or 0  # A pipeline's context knows it.
    return map_present(lambda part: rows_in_place(part, 0, num_rows), parts)
