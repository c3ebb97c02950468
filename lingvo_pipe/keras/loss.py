"""A compiled Keras loss over micro-batches, normalized over the mini-batch.

    Keras:      sum of l / D              D: elements, valid elements of a mask, or sum
    micro m:    (sum of l / D_m, D_m)        of sample weights, by the loss's reduction

The engine's weighted mean over micro-batches is then Keras's mean over the mini-batch.

Shapes: B examples in the mini-batch, b in a micro-batch.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.keras.private_names import (
    flat_losses,
    get_mask,
)

_BY_ELEMENTS = ("sum_over_batch_size", "mean")
_REDUCTIONS = (*_BY_ELEMENTS, "mean_with_sample_weight", "sum")


class PipelineLoss:
    """The loss of one compilation, for a mini-batch's size."""

    def __init__(self, compiled: Any, num_examples: int, is_whole: bool):
        """Checks the reductions.

        Args:
            compiled: Keras's compiled loss, built.
            num_examples: B.
            is_whole: whether the only micro-batch is the mini-batch.

        Raises:
            ValueError: if micro-batches cannot be put together as Keras reduces.
        """
        self._compiled = compiled
        self._num_examples = num_examples
        self._is_whole = is_whole
        self._reductions = [_reduction(loss) for loss in flat_losses(compiled)]
        unknown = sorted(set(self._reductions) - set(_REDUCTIONS))
        if unknown:
            raise UserValueError(
                path="compile(loss=...)",
                expected=f"losses with a reduction among {list(_REDUCTIONS)}",
                got=unknown,
                hint="Set reduction='sum_over_batch_size'.",
            )

    def mean_and_weight(
        self, y: Any, outputs: Any, sample_weight: Any, rows: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a micro-batch's loss and its weight in the mini-batch's mean.

        Args:
            y: targets, `[b, ...]` each.
            outputs: the model's outputs, `[b, ...]` each, with Keras's masks.
            sample_weight: None, or weights `[b, ...]`.
            rows: [], b.
        """
        loss = self._compiled(y, outputs, sample_weight)
        if self._is_whole:
            return loss, tf.ones([])
        share = tf.cast(rows, tf.float32) / float(self._num_examples)
        masks = [get_mask(x) for x in tree.flatten(outputs)]
        kinds = {_weight_kind(r, sample_weight, masks) for r in self._reductions}
        if kinds == {"rows"}:
            return loss, share
        if kinds == {"sum"}:
            return tf.math.divide_no_nan(loss, share), share
        if len(self._reductions) > 1:
            raise UserValueError(
                path="compile(loss=...)",
                expected="one loss, where masks or sample weights normalize it",
                got=f"{len(self._reductions)} losses, each with its own divisor",
                hint="Use num_micro_batches=1, or losses without masks and with "
                "reduction='sum_over_batch_size'.",
            )
        weight = _valid_weight(self._reductions[0], sample_weight, masks[0])
        return loss, weight / float(self._num_examples)


def _reduction(loss: Any) -> str:
    return str(getattr(loss, "reduction", "sum_over_batch_size"))


def _weight_kind(reduction: str, sample_weight: Any, masks: list[Any]) -> str:
    """Returns what a loss is divided by: rows, valid weight, or nothing (sum)."""
    if reduction == "sum":
        return "sum"
    if reduction == "mean_with_sample_weight" and (
        sample_weight is not None or any(m is not None for m in masks)
    ):
        return "valid"
    return "rows" if all(m is None for m in masks) else "valid"


def _valid_weight(reduction: str, sample_weight: Any, mask: Any) -> tf.Tensor:
    """Returns [] float32, the sum by which Keras divides a micro-batch's loss."""
    mask = None if mask is None else tf.cast(mask, tf.float32)
    if reduction in _BY_ELEMENTS or sample_weight is None:
        return tf.reduce_sum(mask)
    weight = tf.cast(tree.flatten(sample_weight)[0], tf.float32)
    if mask is not None:
        while weight.shape.rank < mask.shape.rank:
            weight = weight[..., None]
        weight *= mask
    return tf.reduce_sum(weight)


def regularization(
    variables: list[keras.Variable],
) -> list[tuple[keras.Variable, tf.Tensor, tf.Tensor]]:
    """Returns (variable, penalty, gradient) for each variable with a regularizer.

    Each is computed on its variable's device.
    """
    found = []
    for v in variables:
        if v.regularizer is not None:
            with tf.device(v.value.device), tf.GradientTape() as tape:
                penalty = v.regularizer(v)
            found.append((v, penalty, tape.gradient(penalty, v.value)))
    return found
