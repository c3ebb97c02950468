"""KerasCell: calls of a Keras model as a cell, of flat triples of b rows (`values`)."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import map_present
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.keras import private_names
from lingvo_pipe.keras.cell_calls import CellCalls, CellVariable, LocalCall, Position
from lingvo_pipe.keras.model_function import built_model
from lingvo_pipe.keras.placement import created, placed
from lingvo_pipe.keras.refusals import no_other_variables
from lingvo_pipe.keras.row_seed import UNKNOWN, known_draws
from lingvo_pipe.keras.state import CellScope, mask_weights
from lingvo_pipe.keras.values import all_attached, rows_in_place, triple
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.construction import resolve_params
from lingvo_pipe.layers.core.forward_context import ForwardContext, current_context
from lingvo_pipe.layers.model_size import graph_flops
from lingvo_pipe.nested_map import NestedMap

_HINT = "Make them by self.add_weight, and make layers attributes of layers."


class KerasCell(BaseLayer):
    """Runs calls of Keras layers, on the model's variables or on its own."""

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
        # The calls stand for the model, its arguments and the index.
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
        """Returns the values in their own dtypes: Keras casts by its own policies."""
        return NestedMap({k: tf.convert_to_tensor(values[k]) for k in self.vars})

    def FProp(self, theta: NestedMap, *given: Any) -> tuple[Any, ...]:
        """Maps triples of the values that the cell is given to those it passes on."""
        calls, context = self._calls, current_context()
        values = self._values(given, context)
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
        with scope:
            for call in calls.calls:
                if not context.do_eval:
                    weights.update(mask_weights(call.operation, _masks(call, values)))
                with (
                    known_draws(call.draws[not context.do_eval]),
                    no_other_variables(f"layer {call.operation.name!r}", _HINT),
                ):
                    values += _made(call, values, training=not context.do_eval)
                if scope.writes[id(unseeded)]:
                    raise _unseeded(call.operation)
        for call in calls.calls:
            if isinstance(call.operation, keras.Layer):
                private_names.forget_losses(call.operation)
        if not context.do_eval:
            self._hand_over(scope, context, weights)
        losses = [*scope.losses, *self._penalties(variable_values)]
        if losses:  # Each is a mean over the micro-batch.
            total = tf.add_n([tf.cast(x, tf.float32) for x in losses])
            rows = context.num_rows or tf.shape(given[0])[0]
            self.AddLoss("keras_losses", tf.fill([rows], total))
        return tuple(
            x
            for i, is_output in zip(calls.kept, calls.are_outputs, strict=True)
            for x in _padded(triple(values[i], is_output), calls.has_rows[i], context)
        )

    def PostTrainingStepUpdate(self, accumulated: NestedMap) -> None:
        """Moves seeds on, and averages what the micro-batches have written."""
        for i, v in enumerate(self._calls.variables):
            variable = self.vars[v.name]
            with tf.device(variable.device):
                if v.draws[True]:
                    variable.assign_add(tf.constant([0, v.draws[True]], variable.dtype))
                if v.kind.is_summed:
                    state = self._next_state(i, accumulated)
                    variable.assign(tf.cast(state, variable.dtype))

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        """Counts the operations of an evaluation.

        Loops over time count once.
        """
        calls = _calls_of(p)
        with tf.Graph().as_default() as graph, ForwardContext(do_eval=True):
            layer = cls.Params().Set(name="cell", calls=calls).Instantiate()
            placeholders = [
                _placeholders(shape, tf.bool if i % 3 == 1 else calls.dtypes[i // 3])
                for i, shape in enumerate(shapes)
            ]
            outputs = layer.FProp(layer.theta, *placeholders)
        out_shapes = tuple(map_present(lambda x: tuple(x.shape), x) for x in outputs)
        return NestedMap(flops=graph_flops(graph), out_shapes=out_shapes)

    def _penalties(self, values: Mapping[int, Any]) -> list[Any]:
        """Returns the regularizers' losses.

        If the cell shares the model's variables, the model adds them later.
        """
        return [
            v.variable.regularizer(values[id(v.variable)])
            for v in self._calls.variables
            if v.variable.regularizer and v.owned and not self._calls.shares_variables
        ]

    def _values(self, given: Sequence[Any], context: ForwardContext) -> list[Any]:
        triples = list(given)
        for i in range(len(given)):
            if self._calls.has_rows[i // 3] and context.may_have_padding_rows:
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
                new = tf.cast(scope.get_current_value(v), tf.float64)
                if kind.name != "state":
                    _check_written_once(v, scope)
                    new /= 1.0 - kind.momentum
                self.Accumulate(f"keras_sum{i}", new * weight)
                self.Accumulate(f"keras_count{i}", weight)
                if kind.name == "mean":
                    self.Accumulate(f"keras_square{i}", new**2 * weight)
            elif kind.name != "seed" and scope.writes[id(v)]:
                raise UserValueError(
                    f"variable {v.path!r}: expected weights that only the optimizer "
                    "changes, got a layer that writes it in its call. Micro-batches "
                    "would each write another value. Leave the layer out, or compute "
                    "the value without storing it."
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


def _given(v: CellVariable, theta: NestedMap, context: ForwardContext) -> tf.Tensor:
    value = theta[v.name]
    if v.kind.name in ("mean", "variance") and not context.do_eval:
        return tf.zeros_like(value)
    earlier = v.earlier_draws[not context.do_eval]
    return value + tf.constant([0, earlier], value.dtype) if earlier else value


def _unseeded(layer: Any) -> UserValueError:
    return UserValueError(
        f"layer {layer.name!r}: expected random numbers from a "
        "keras.random.SeedGenerator of the layer, got a draw from Keras's global seed. "
        "Create self.seed_generator = keras.random.SeedGenerator(seed) in the layer's "
        "__init__, and pass seed=self.seed_generator."
    )


def _check_written_once(variable: keras.Variable, scope: CellScope) -> None:
    if scope.writes[id(variable)] > 1:
        raise UserValueError(
            f"variable {variable.path!r}: expected a batch normalization that is "
            f"called once between two kernels, got {scope.writes[id(variable)]} calls, "
            "each of which moves its averages. Use one layer for each call; in place "
            "of TimeDistributed, call the layer itself."
        )


def _masks(call: LocalCall, values: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the argument `mask` of a call or, without it, its inputs' masks."""
    mask_argument = call.kwargs.get("mask")
    if isinstance(mask_argument, Position):
        return [values[mask_argument]]
    arguments = tree.flatten((call.args, call.kwargs))
    masks = [
        private_names.get_mask(values[x]) for x in arguments if isinstance(x, Position)
    ]
    return [mask for mask in masks if mask is not None]


def first_inputs(graph: private_names.Functional, x: Any) -> list[Any]:
    """Returns a model's inputs as the first cell takes them."""
    flat = private_names.standardized_inputs(graph, x)
    return [z for value in flat for z in triple(value, with_logits=False)]


def _placeholders(shape: Any, dtype: tf.DType) -> Any:
    """Returns a placeholder of a shape, for each of a dict of shapes, or None."""
    if isinstance(shape, Mapping):
        return {key: _placeholders(x, dtype) for key, x in shape.items()}
    return None if shape is None else tf.compat.v1.placeholder(dtype, shape)


def _calls_of(p: InstantiableParams) -> CellCalls:
    if p.calls is not None:
        return p.calls
    cells = built_model(p.model, p.arguments, p.random_seed).cells.cells
    return list(cells.values())[p.index]


def _check_unset(p: InstantiableParams) -> None:
    """Raises ValueError if params, or those they come from, ask for what Keras sets."""
    default = resolve_params(BaseLayer.Params().Set(name="default"), None)
    for name in ("dtype", "fprop_dtype", "params_init"):
        if p.Get(name) != default.Get(name):
            raise UserValueError(
                f"{name} of a Keras model: expected None, because its layers have "
                f"dtypes and initializers, got {p.Get(name)!r}. Set "
                "keras.config.set_dtype_policy, or the layers' initializers."
            )


def _made(call: LocalCall, values: Sequence[Any], training: bool) -> list[Any]:
    args, kwargs = tree.map_structure(
        lambda x: values[x] if isinstance(x, Position) else x,
        (call.args, call.kwargs),
    )
    try:
        outputs = private_names.run_operation(call.operation, training, args, kwargs)
    except ValueError as error:  # For an unknown number of examples it has run.
        raise UserValueError(
            f"layer {call.operation.name!r}: {error}\nExpected a layer that takes any "
            "number of examples. If it merges them with another dimension, choose "
            "num_micro_batches so that it can do so in each micro-batch."
        ) from error
    outputs = tree.flatten(outputs)
    if len(outputs) != call.num_made:
        raise UserValueError(
            f"layer {call.operation.name!r}: expected {call.num_made} outputs, as when "
            f"the model was built, got {len(outputs)!r}."
        )
    return outputs


def _padded(parts: Sequence[Any], has_rows: bool, context: ForwardContext) -> Any:
    """Returns the parts of a triple with as many rows as the micro-batch."""
    if not (has_rows and context.may_have_padding_rows):
        return parts
    num_rows = context.num_rows or 0  # A pipeline's context knows it.
    return map_present(lambda x: rows_in_place(x, 0, num_rows), parts)
