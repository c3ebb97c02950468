"""A compiled loss and metrics over micro-batches and steps.

    last stage      outputs, targets -> loss, states of metrics of a micro-batch
    after the step  their totals     -> the metrics' variables

If the states of all metrics add up over examples, the last stage computes the metrics.
Otherwise all metrics are updated once in a step, from the mini-batch's outputs.

Shapes: B examples in the mini-batch, b in a micro-batch.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from keras import tree

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.core.nests import (
    map_present,
    pack_present,
    present,
    spec_of,
    wide_dtype,
)
from lingvo_pipe.keras.cells import private_names
from lingvo_pipe.keras.cells.refusals import no_other_variables
from lingvo_pipe.keras.cells.triples import (
    packed_outputs,
    rows_in_place,
    tensors_by_name,
    triples_of,
)
from lingvo_pipe.keras.loss import (
    NoLoss,
    check_reductions,
    divisors_of,
    mean_and_weight,
)
from lingvo_pipe.keras.mixing.mixing import is_of_keras, mixing_losses, warn_of
from lingvo_pipe.keras.whole_loss import (
    WholeLoss,
    can_be_rerun,
    graph_of_loss,
    stand_in,
    whole_loss,
)
from lingvo_pipe.layers.core.forward_context import current_context
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.tracing.loss_function import Total

_HINT = "Give PipelinedModel exact_losses=True or 'auto', which allow them."
# Metrics of Keras whose states are not sums over examples.
_NO_SUMS = ("PearsonCorrelation", "ConcordanceCorrelation")


class LossAndMetrics:
    """The loss and metrics of one call of `compile`."""

    _graph: private_names.Functional  # Of the model that `outputs` has run last.

    def __init__(self, loss: Any, metrics: Any, exact_losses: bool | str):
        """Takes the loss and metrics that Keras has compiled."""
        self._metrics = metrics
        self._loss = NoLoss() if loss is None else loss
        self.dtype = wide_dtype(tf.as_dtype(self._loss.dtype))  # The reported loss's.
        self._exact_losses = exact_losses
        # Whether losses are computed from the whole mini-batch's outputs.
        self.is_exact = exact_losses is True
        self.layers_add_losses = False
        self._are_flat = False  # Whether an output has no dimension but the examples.
        self._functions: dict[tuple[int, int], Callable[..., NestedMap]] = {}

    def outputs(self, model: keras.Model, x: Any) -> Any:
        """Returns the specs of a model's outputs.

        Notes how these are nested, and if layers add losses. Both change with layers.
        """
        self._graph = private_names.graph_of(model)

        def run(x: Any) -> Any:
            with keras.StatelessScope(collect_losses=True) as scope:
                outputs = model(x, training=True)
            self.layers_add_losses = bool(scope.losses)
            return outputs

        return private_names.compute_output_spec(run, x)

    def loss_function(
        self, num_examples: int, num_micro_batches: int
    ) -> Callable[..., NestedMap]:
        """Returns a pipeline's loss function, the same object for the same arguments.

        It takes the outputs' triples and a tuple: targets, sample weights, the loss
        scale for each example, `divisors` and `whole`, `[b, ...]` each. All items of
        the tuple but the targets may be None.
        """
        key = num_examples, num_micro_batches
        if key not in self._functions:

            def loss_function(triples: Sequence[Any], targets: Any) -> NestedMap:
                return self._micro_batch(*key, triples, *targets)

            self._functions[key] = loss_function
        return self._functions[key]

    def divisors(
        self,
        model: keras.Model,
        data: tuple[Any, Any, Any],
        num_examples: int,
        num_micro_batches: int,
    ) -> list[tf.Tensor | None] | None:
        """Returns each loss's divisor over the mini-batch, repeated as `[B]`.

        A divisor is None if all elements of its loss count the same. Returns None if no
        loss has a divisor, or if there is one micro-batch or, counting layers', loss.

        Raises:
            ValueError: if masks depend on weights or on random numbers.
        """
        num_losses = len(private_names.flat_losses(self._loss))
        if num_micro_batches == 1 or num_losses + self.layers_add_losses <= 1:
            return None
        divisors: list[tf.Tensor | None] = []

        def find(*flat: tf.Tensor) -> list[tf.Tensor]:
            x, y, sample_weight = pack_present(data, flat)
            outputs = model(x, training=True)
            divisors[:] = divisors_of(self._loss, y, outputs, sample_weight)
            return present(divisors)

        graph = tf.compat.v1.wrap_function(find, list(map(spec_of, present(data))))
        private_names.forget_losses(model)
        if not present(divisors):
            return None
        pruned = graph.prune(graph.inputs, present(divisors))
        if any(x.dtype == tf.resource and x.consumers() for x in pruned.inputs):
            raise UserValueError(
                path="compile(loss=...)",
                expected="masks that follow from the inputs alone, for several losses",
                got=Words("a mask that depends on weights or random numbers"),
                hint="Give PipelinedModel exact_losses=True, or compute the mask from "
                "an input.",
            )
        values = [tf.fill([num_examples], x) for x in pruned(*present(data))]
        return pack_present(divisors, values)

    def choose_exactness(
        self, model: keras.Model, num_micro_batches: int, *specs: Any
    ) -> None:
        """Decides whether losses are computed for micro-batches or for the mini-batch.

        `specs` are KerasTensors of targets, outputs and sample weights.

        Raises:
            ValueError: if a loss has an unknown reduction, or reads trained weights.
        """
        self._are_flat = any(len(x.shape) < 2 for x in tree.flatten(specs[1]))
        check_reductions(self._loss)
        trackers = [v for m in self._loss.metrics for v in m.variables]
        graph = graph_of_loss(
            lambda *args: _written(trackers, lambda: self._loss(*args)), specs
        )
        _check_weights(model, graph)
        if self._exact_losses == "auto" and not can_be_rerun(graph):
            self.is_exact = True
            logging.info(
                "%s: the loss calls a model that is not trained, or keeps state, so it "
                "takes one more forward pass.",
                model.name,
            )
        elif num_micro_batches > 1:
            names = mixing_losses(self._loss, *specs)
            if names and self._exact_losses == "auto":
                self.is_exact = True
            if not self.is_exact:
                for name in names:
                    warn_of(model.name, "loss", name)
            elif names:
                logging.info(
                    "%s: losses %s may mix the examples of a mini-batch, so they take "
                    "one more forward pass. PipelinedModel(exact_losses=False) spares "
                    "it for losses that treat examples one by one.",
                    model.name,
                    names,
                )

    def whole(self, outputs: Sequence[Any], y: Any, sample_weight: Any) -> WholeLoss:
        """Returns the loss of a mini-batch from a pipeline's outputs, `[B, ...]` each.

        Also updates the metrics that track each single loss.
        """
        return whole_loss(
            outputs,
            lambda x: self._loss(y, packed_outputs(self._graph, x), sample_weight),
        )

    def update_metrics(self, step: NestedMap, y: Any, sample_weight: Any) -> None:
        """Updates the metrics' variables with the results of a pipeline's step."""
        for i, m in enumerate(self._loss.metrics):
            if f"loss{i}" in step:  # Otherwise, `whole` has updated it.
                _add(m.variables, tf.unstack(step[f"loss{i}"].value))
        if self._metrics is None:
            return
        if self._all_add_up():
            variables = _variables_of(self._metrics)
            _add(variables, [step[f"metric{i}"].value for i in range(len(variables))])
            return
        totals = {name: x.value for name, x in step.items() if isinstance(x, Total)}
        y_pred = packed_outputs(self._graph, triples_of(totals))
        self._metrics.update_state(y, y_pred, sample_weight)

    def _all_add_up(self) -> bool:
        # Of flat outputs, Keras's functions return a mean over the examples.
        return not self._are_flat and all(map(_adds_up, self._metrics.metrics))

    def _micro_batch(
        self,
        num_examples: int,
        num_micro_batches: int,
        triples: Sequence[Any],
        y: Any,
        sample_weight: Any,
        scale: tf.Tensor | None,
        divisors: Any,
        whole: WholeLoss | None,
    ) -> NestedMap:
        """Returns a micro-batch's loss, and what it adds to the metrics' states."""
        outputs, context = packed_outputs(self._graph, triples), current_context()
        # Not from the outputs' shape: the engine needs the weight before the outputs.
        rows = context.num_examples
        rows = triples[0].shape[0] if rows is None else rows
        divisors = divisors and map_present(lambda x: x[0], divisors)
        data = y, outputs, sample_weight
        sums: list[tf.Tensor] = []
        if whole is not None:
            weight = tf.cast(rows, tf.float64) / float(num_examples)
            mean = stand_in(triples, whole, weight)
        else:
            with no_other_variables("the loss", _HINT):
                (mean, weight), sums = _written(
                    [v for m in self._loss.metrics for v in m.variables],
                    lambda: (
                        mean_and_weight(self._loss, data, rows, num_examples, divisors)
                        if num_micro_batches > 1
                        else (self._loss(*data), tf.ones([], tf.float64))
                    ),
                )
        # Through the weight the scale reaches layers' losses, too. The mean cancels it.
        metrics = NestedMap(loss=(mean, weight))
        if scale is not None:  # The reported loss must not overflow.
            scaled = weight * tf.cast(scale[0], weight.dtype)
            metrics.update(loss=(mean, scaled), unscaled=(mean, weight))
        for i, (total, count) in enumerate(zip(sums[::2], sums[1::2], strict=True)):
            value = tf.math.divide_no_nan(total, count) * num_examples
            metrics[f"loss{i}"] = Total(tf.stack([value, tf.cast(rows, value.dtype)]))
        metrics.update(self._metric_totals(triples, data, num_examples))
        return metrics

    def _metric_totals(
        self, triples: Sequence[Any], data: tuple[Any, Any, Any], num_examples: int
    ) -> dict[str, Total]:
        """Returns totals of metrics' states or, if these are no sums, of outputs."""
        if self._metrics is None:
            return {}
        if self._all_add_up():
            _, sums = _written(
                _variables_of(self._metrics), lambda: self._metrics.update_state(*data)
            )
            return {f"metric{i}": Total(x) for i, x in enumerate(sums)}
        first = current_context().first_example
        return {
            name: Total(
                rows_in_place(
                    tf.cast(x, tf.float32) if x.dtype == tf.bool else x,
                    first,
                    num_examples,
                )
            )
            for name, x in tensors_by_name(triples).items()
        }


def _variables_of(metrics: keras.Metric) -> list[keras.Variable]:
    """Returns the variables of metrics, once each: outputs may share a metric."""
    return list({id(v): v for v in metrics.variables}.values())


def _check_weights(model: keras.Model, graph: Any) -> None:
    paths = {id(v.value.handle): v.path for v in model.trainable_variables}
    if weights := [paths[id(x)] for x, _ in graph.captures if id(x) in paths]:
        raise UserValueError(
            path="compile(loss=...)",
            expected="losses of targets and outputs, in which no weight is trained",
            got=Words(f"a loss that reads {weights}"),
            hint="Use a layer's add_loss or a regularizer for losses of weights.",
        )


def _adds_up(metric: keras.Metric) -> bool:
    """Returns True for Keras's metrics whose state is a sum over the examples."""
    if not type(metric).__module__.startswith("keras."):
        return False
    if any(base.__name__ in _NO_SUMS for base in type(metric).__mro__):
        return False
    function, options = private_names.metric_function(metric)
    return function is None or _is_by_example(function, options)


def _is_by_example(function: Callable, options: Mapping[str, Any]) -> bool:
    if not is_of_keras(function):
        return False
    y_pred = keras.KerasTensor((None, 3))
    for y_true in (y_pred, keras.KerasTensor((None,), "int32")):
        with contextlib.suppress(Exception):  # The function takes other targets.
            values = private_names.compute_output_spec(
                function, y_true, y_pred, **options
            )
            return bool(values.shape) and values.shape[0] is None
    return False


def _written(
    variables: Sequence[keras.Variable], run: Callable[[], Any]
) -> tuple[Any, list[tf.Tensor]]:
    zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in variables]
    with keras.StatelessScope(zeros) as scope:
        result = run()
    return result, [scope.get_current_value(v) for v in variables]


def _add(variables: Sequence[keras.Variable], added: Sequence[tf.Tensor]) -> None:
    for v, x in zip(variables, added, strict=True):
        v.assign_add(tf.cast(x, v.dtype))
