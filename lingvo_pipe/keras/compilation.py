"""A compiled loss and metrics over micro-batches and steps.

    last stage      outputs, targets -> loss, states of metrics of a micro-batch
    after the step  their totals     -> the metrics' variables

Shapes: B examples in the mini-batch, b in a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.keras.loss import PipelineLoss
from lingvo_pipe.keras.metrics import all_add_up, shares
from lingvo_pipe.keras.private_names import Functional, output_structure
from lingvo_pipe.keras.rows import rows_in_place, with_mask
from lingvo_pipe.layers.core.forward_context import current_context
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.tracing.loss_function import Total


class Compilation:
    """The loss and metrics of one call of `compile`."""

    def __init__(self, graph: Functional, loss: Any, metrics: Any):
        """Takes the model's graph, and Keras's compiled loss and metrics or None."""
        self._graph, self._loss, self._metrics = graph, loss, metrics
        self._functions: dict[tuple[int, int], Callable[..., NestedMap]] = {}

    def loss_function(
        self, num_examples: int, num_micro_batches: int
    ) -> Callable[..., NestedMap]:
        """Returns the loss function of a pipeline, the same for each mini-batch size.

        It takes the outputs and (targets, sample weights, loss scale for each example),
        `[b, ...]` each; the last two may be None.
        """
        key = num_examples, num_micro_batches
        if key not in self._functions:
            loss = PipelineLoss(self._loss, num_examples, num_micro_batches == 1)

            def loss_function(pairs: Sequence[Any], targets: Any) -> NestedMap:
                return self._micro_batch(loss, num_examples, pairs, *targets)

            self._functions[key] = loss_function
        return self._functions[key]

    def update_metrics(self, found: NestedMap, y: Any, sample_weight: Any) -> None:
        """Updates the metrics' variables by what a step of the pipeline returns."""
        for i, m in enumerate(self._loss.metrics):
            _add(m.variables, tf.unstack(found[f"loss{i}"].value))
        if self._metrics is None:
            return
        if all_add_up(self._metrics):
            variables = self._metrics.variables
            _add(variables, [found[f"metric{i}"].value for i in range(len(variables))])
            return
        number = len(self._graph.outputs)
        outputs = [found[f"output{i}"].value for i in range(number)]
        y_pred = tree.pack_sequence_as(output_structure(self._graph), outputs)
        self._metrics.update_state(y, y_pred, sample_weight)

    def _micro_batch(
        self,
        loss: PipelineLoss,
        num_examples: int,
        pairs: Sequence[Any],
        y: Any,
        sample_weight: Any,
        scale: tf.Tensor | None,
    ) -> NestedMap:
        outputs, context = packed_outputs(self._graph, pairs), current_context()
        # Not counted in the outputs: the engine needs the loss's weight beforehand.
        rows = context.num_examples
        rows = pairs[0].shape[0] if rows is None else rows
        metrics = self._metrics_of_loss(loss, rows, y, outputs, sample_weight)
        if scale is not None:
            mean, weight = metrics.loss
            metrics.loss = (mean * scale[0], weight)
        if self._metrics is None:
            return metrics
        if all_add_up(self._metrics):
            variables = self._metrics.variables
            found = shares(self._metrics, variables, y, outputs, sample_weight)
            metrics.update({f"metric{i}": Total(x) for i, x in enumerate(found)})
            return metrics
        for i, x in enumerate(pairs[::2]):
            placed = rows_in_place(x, context.first_example, num_examples)
            metrics[f"output{i}"] = Total(placed)
        return metrics

    def _metrics_of_loss(
        self, loss: PipelineLoss, rows: Any, y: Any, outputs: Any, sample_weight: Any
    ) -> NestedMap:
        """Returns the loss, and what it adds to its metrics, one for each output."""
        state = [v for m in self._loss.metrics for v in m.variables]
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in state]
        with keras.StatelessScope(zeros) as scope:
            metrics = NestedMap(
                loss=loss.mean_and_weight(y, outputs, sample_weight, rows)
            )
        for i, m in enumerate(self._loss.metrics):
            total, count = (scope.get_current_value(v) for v in m.variables)
            share = tf.cast(rows, total.dtype)
            metrics[f"loss{i}"] = Total(tf.stack([total / count * share, share]))
        return metrics


def packed_outputs(graph: Functional, pairs: Sequence[Any]) -> Any:
    """Returns pairs (output, mask) in the structure of a model's outputs."""
    values = list(map(with_mask, pairs[::2], pairs[1::2]))
    return tree.pack_sequence_as(output_structure(graph), values)


def _add(variables: Sequence[keras.Variable], added: Sequence[tf.Tensor]) -> None:
    for v, x in zip(variables, added, strict=True):
        v.assign_add(tf.cast(x, v.dtype))
