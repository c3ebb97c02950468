"""A compiled Keras loss over micro-batches, and the update of weights.

    mini-batch, in Keras    sum(l) / D
    micro-batch m           sum(l) / D_m with the weight D_m

D is the number of elements, the number of unmasked elements, or the sum of sample
weights, by the loss's reduction. The engine's weighted mean is then Keras's loss. If
there are several losses, each has its own D, which must be known before the step. So
masks must follow from the inputs alone: D is then computed without running the model.
Weights are float64, so that they round no digit of a loss.

Shapes: B examples in the mini-batch, b in a micro-batch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.keras.cells.private_names import flat_losses, get_mask, with_losses
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.updating_in_place import in_place

_BY_ELEMENTS = ("sum_over_batch_size", "mean")
_REDUCTIONS = (*_BY_ELEMENTS, "mean_with_sample_weight", "sum")


class NoLoss:
    """The loss of a model that is compiled without one: 0, with gradients of 0.

    The losses that layers add are then the only ones.
    """

    def __init__(self) -> None:
        self.dtype, self.metrics = keras.config.floatx(), ()
        self._flat_losses = ()

    def __call__(self, y: Any, outputs: Any, sample_weight: Any = None) -> tf.Tensor:
        floats = [x for x in tree.flatten(outputs) if x.dtype.is_floating]
        # Sums of no numbers: the outputs have gradients, and are not read.
        parts = [tf.cast(tf.reshape(x, [-1])[:0], tf.float32) for x in floats]
        return tf.cast(sum(map(tf.reduce_sum, parts), tf.zeros([])), self.dtype)


def check_reductions(compiled: Any) -> None:
    """Raises ValueError unless losses of micro-batches can be combined."""
    unknown = set(map(_reduction, flat_losses(compiled))) - set(_REDUCTIONS)
    if unknown:
        raise UserValueError(
            path="compile(loss=...)",
            expected=f"losses with a reduction among {list(_REDUCTIONS)}",
            got=sorted(unknown),
        )


def mean_and_weight(
    compiled: Any,
    data: tuple[Any, Any, Any],
    rows: tf.Tensor,
    num_examples: int,
    divisors: Sequence[tf.Tensor | None] | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a micro-batch's loss and its weight in the mini-batch's mean.

    `data` are targets, outputs and sample weights, `[b, ...]` each.
    """
    share = weight = tf.cast(rows, tf.float64) / float(num_examples)
    losses = flat_losses(compiled)
    if len(losses) == 1 and _reduction(losses[0]) != "sum" and divisors is None:

        def value(*loss_args: Any) -> tf.Tensor:
            nonlocal weight  # Set while the compiled loss runs below.
            divisor = _divisor(losses[0], *loss_args)
            if divisor is not None:
                weight = divisor / float(num_examples)
            return losses[0](*loss_args)

        return with_losses(compiled, [value])(*data), weight
    totals = divisors or [None] * len(losses)
    shares = [
        _share_of(loss, share, total)
        for loss, total in zip(losses, totals, strict=True)
    ]
    loss = with_losses(compiled, shares)(*data)
    return tf.math.divide_no_nan(loss, tf.cast(share, loss.dtype)), share


def divisors_of(compiled: Any, *data: Any) -> list[tf.Tensor | None]:
    """Returns each loss's divisor over a mini-batch (see `_divisor`).

    `data` are targets, outputs and sample weights, `[B, ...]` each.
    """
    divisors: list[tf.Tensor | None] = []

    def measure(loss: Any) -> Callable[..., tf.Tensor]:
        def value(*args: Any) -> tf.Tensor:
            divisors.append(_divisor(loss, *args))
            return tf.zeros([])

        return value

    with_losses(compiled, list(map(measure, flat_losses(compiled))))(*data)
    return divisors


def _reduction(loss: Any) -> str:
    return str(getattr(loss, "reduction", "sum_over_batch_size"))


def _share_of(
    loss: Any, share: tf.Tensor, total: tf.Tensor | None
) -> Callable[..., tf.Tensor]:
    """Returns `loss`, scaled so that micro-batches add up to the mini-batch's loss."""

    def value(*loss_args: Any) -> tf.Tensor:
        loss_value = loss(*loss_args)
        if _reduction(loss) == "sum":
            return loss_value
        divisor = _divisor(loss, *loss_args)
        factor = share if total is None else tf.math.divide_no_nan(divisor, total)
        return loss_value * tf.cast(factor, loss_value.dtype)

    return value


def _divisor(
    loss: Any, y_true: Any, y_pred: Any, sample_weight: Any
) -> tf.Tensor | None:
    """Returns the number D by which the sum of a loss is divided, float64 `[]`.

    Returns None if D is the number of all elements, or if the loss is a plain sum.
    """
    masks = [get_mask(y_pred)]
    if getattr(loss, "ignore_class", None) is not None:
        values = loss.call(tf.cast(y_true, loss.dtype), tf.cast(y_pred, loss.dtype))
        masks.append(get_mask(values))
    masks = [tf.cast(mask, tf.float64) for mask in masks if mask is not None]
    mask = math.prod(masks) if masks else None
    if _reduction(loss) in _BY_ELEMENTS:
        return None if mask is None else tf.reduce_sum(mask)
    if _reduction(loss) == "sum" or (mask is None and sample_weight is None):
        return None
    if sample_weight is None:
        return tf.reduce_sum(mask)
    weight = tf.cast(sample_weight, tf.float64)
    if mask is not None:
        while weight.shape.rank < mask.shape.rank:
            weight = weight[..., None]
        weight *= mask
    return tf.reduce_sum(weight)


def regularization(
    variables: list[keras.Variable],
) -> list[tuple[keras.Variable, tf.Tensor, tf.Tensor | None]]:
    """Returns (variable, penalty, gradient) of each variable with a regularizer.

    The gradient is None if the penalty is a constant, as with a factor of 0.
    """
    penalties = []
    for v in variables:
        if v.regularizer is not None:
            with tf.device(v.value.device), tf.GradientTape() as tape:
                tape.watch(v.value)  # A tape skips variables that were made frozen.
                penalty = tf.reduce_sum(v.regularizer(v))  # It may be no scalar.
            penalties.append((v, penalty, tape.gradient(penalty, v.value)))
    return penalties


def total_loss(metrics: NestedMap, dtype: tf.DType) -> tf.Tensor:
    """Returns the loss plus the losses that layers add, in a dtype."""
    loss, _ = metrics.unscaled if "unscaled" in metrics else metrics.loss
    loss = tf.cast(loss, dtype)
    if "keras_losses" in metrics:
        loss += tf.cast(metrics.keras_losses[0], dtype)
    return loss


def loss_scale(optimizer: keras.Optimizer) -> tf.Tensor | None:
    """Returns the factor of the loss that an optimizer expects, or None."""
    one = tf.ones([])
    scale = optimizer.scale_loss(one)
    return None if scale is one else scale


def apply_gradients(
    optimizer: keras.Optimizer,
    weights: list[keras.Variable],
    theta: Any,
    result: NestedMap,
    scale: tf.Tensor | None,
    dtype: tf.DType,
) -> tf.Tensor:
    """Adds the penalties of weights, updates the weights, and returns the loss.

    `result` is what the pipeline's ComputeGradients has returned for its `theta`. The
    optimizer expects gradients of the loss times `scale`, unless that is None. `dtype`
    is the loss's. Keras warns of weights that no cell has.
    """
    loss = total_loss(result.metrics, dtype)
    flat = tf.nest.flatten(theta), tf.nest.flatten(result.gradients)
    gradients = {v.ref(): g for v, g in zip(*flat, strict=True) if g is not None}
    for v, penalty, gradient in regularization(weights):
        loss += tf.cast(penalty, dtype)
        if gradient is not None:
            gradients[v.value.ref()] = gradients.get(v.value.ref(), 0.0) + gradient
    pairs = [(gradients.get(v.value.ref()), v) for v in weights]
    if scale is not None:  # The engine has divided by it, as a part of the weight.
        pairs = [(g if g is None else g * tf.cast(scale, g.dtype), v) for g, v in pairs]
    if pairs:
        in_place(optimizer).apply_gradients(pairs)
    return loss
