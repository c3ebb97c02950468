"""Layers and losses whose results for one example depend on other examples.

They see fewer examples in a micro-batch, so their results depend on the number of
micro-batches. Layers and Keras's own losses are run on a few random examples, at once
and in two halves. A user's loss is run before and after one example is changed.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras import tree

from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.keras import private_names
from lingvo_pipe.keras.calls import GraphTensor, KerasCall, calls_of
from lingvo_pipe.keras.row_seed import known_draws
from lingvo_pipe.keras.state import CellScope, RandomDraws, draws_of, kinds_of

_NUM_ROWS = 4
_PARTS = slice(0, _NUM_ROWS), slice(0, _NUM_ROWS // 2), slice(_NUM_ROWS // 2, _NUM_ROWS)
_Tolerance = tuple[float, float]  # Relative and absolute.
_ROUNDED: _Tolerance = (0.02, 1e-3)
_EXACT: _Tolerance = (1e-4, 1e-7)
_FEW = 3  # The size of other dimensions that are None.
_MAX_NAMED = 3


def warn_of_mixing(model: keras.Model) -> None:
    """Logs a warning for each layer or operation that mixes examples."""
    for name in mixing_layers(model):
        warn_of(model.name, "layer", name)


def warn_of_normalization(model: keras.Model) -> None:
    """Logs a warning that names the layers that normalize by micro-batch moments."""
    if names := [x.name for x in private_names.flat_layers(model) if _normalizes(x)]:
        shown = first_names(list(map(repr, names)), _MAX_NAMED)
        text = "%s: %s normalize by the moments of each micro-batch, as GPipe does."
        logging.warning(text, model.name, shown)


def mixing_layers(model: keras.Model) -> list[str]:
    """Returns the names of layers that mix examples.

    A layer mixes them if its outputs for random values show it, or if it draws random
    numbers whose examples are not the first dimension. Keras's own layers are tried
    only if they are a Lambda or use axis 0. Of each class of KerasHub, one layer is
    tried. Layers with batch normalization, or that fail on random values, do not count.
    """
    of_hub: dict[type, bool] = {}
    names = []
    for call in calls_of(model).calls:
        kind = type(call.operation)
        if not kind.__module__.startswith("keras_hub."):
            mixes = _may_mix(call)
        else:
            mixes = of_hub[kind] if kind in of_hub else _may_mix(call)
            of_hub[kind] = mixes
        names += [call.operation.name] * mixes
    return list(dict.fromkeys(names))


def _normalizes(layer: keras.Layer) -> bool:
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _may_mix(call: KerasCall) -> bool:
    layer, draws = call.operation, draws_of(call, training=True)
    if draws.are_elsewhere:
        return True
    if isinstance(layer, keras.Layer):
        is_known = type(layer).__module__.startswith("keras.src.layers.")
        if 0 in tree.flatten(getattr(layer, "axis", None)):
            is_known = False
        normalizes = any(map(_normalizes, private_names.flat_layers(layer)))
        if normalizes or (is_known and not isinstance(layer, keras.layers.Lambda)):
            return False
    if all(x.row_axis is None for x in call.taken):
        return False
    random = np.random.default_rng(0)
    try:
        examples = {x.number: _example(x, random) for x in call.taken}
        outputs = [_outputs(call, draws, examples, part) for part in _PARTS]
    except Exception:  # Whatever a user's layer raises on such values.
        return False
    number = len(call.made)
    # A loss may have a small coefficient, such as 0.001 for load balancing.
    is_rounded = getattr(layer, "compute_dtype", None) in ("float16", "bfloat16")
    tolerance = _ROUNDED if is_rounded else _EXACT
    return not (
        all(map(_is_same, call.made, *outputs))
        # The pipeline takes the means of losses and of the state that layers write.
        and all(
            _is_mean(*triple, tolerance=tolerance)
            for triple in zip(*(numbers[number:] for numbers in outputs), strict=True)
        )
    )


def mixing_losses(compiled: Any, *given: Any) -> list[str]:
    """Returns the names of losses that mix examples, by specs of their arguments."""
    specs: list[list[keras.KerasTensor]] = []

    def note(*args: Any) -> tf.Tensor:
        specs.append([keras.KerasTensor(x.shape, x.dtype) for x in args[:2]])
        return tf.zeros([])

    losses = private_names.flat_losses(compiled)
    private_names.compute_output_spec(
        private_names.with_losses(compiled, [note] * len(losses)), *given
    )
    pairs = zip(losses, specs, strict=True)
    return [loss.name for loss, shapes in pairs if loss_mixes(loss, shapes)]


def warn_of(model: str, kind: str, name: str) -> None:
    """Logs that a layer or a loss mixes examples."""
    logging.warning(
        "%s: %s %r mixes the examples of a mini-batch. It sees one micro-batch at a "
        "time, so results may depend on num_micro_batches.",
        model,
        kind,
        name,
    )


def loss_mixes(loss: keras.Loss, specs: Sequence[keras.KerasTensor]) -> bool:
    """Returns whether a loss may mix examples, by its results for values like `specs`.

    The values are random. A loss of Keras mixes examples if its value is not the mean
    of its values for two halves. Any other loss must return a value for each example,
    and a change of one example must not change the values of others.
    """
    if type(loss).__call__ is not keras.Loss.__call__:
        return True
    function = getattr(loss, "fn", type(loss))
    is_of_keras = str(getattr(function, "__module__", "")).startswith("keras.")
    shapes = [x.shape[1:] for x in specs]
    if is_of_keras:  # Small examples suffice to see whether it mixes them.
        shapes = [[min(size or _FEW, _FEW) for size in shape] for shape in shapes]
    random = np.random.default_rng(0)
    rows = [
        GraphTensor(0, keras.KerasTensor((None, *shape), x.dtype))
        for shape, x in zip(shapes, specs, strict=True)
    ]
    examples = [_example(x, random) for x in rows]
    # A loss may take any numbers, or only numbers from 0 to 1.
    squashed = [1 / (1 + np.exp(-x)) if x.dtype.kind == "f" else x for x in examples]
    mixes = _differs_on_halves if is_of_keras else _may_mix_rows
    return mixes(loss, examples) or mixes(loss, squashed)


def _differs_on_halves(loss: keras.Loss, examples: Sequence[np.ndarray]) -> bool:
    try:
        values = [
            np.asarray(loss(*(x[part] for x in examples)), "float64") for part in _PARTS
        ]
    except Exception:  # The loss does not take such values.
        return False
    if loss.reduction == "sum":
        values[0] = values[0] / 2
    return not _is_mean(*values)


def _may_mix_rows(loss: keras.Loss, examples: Sequence[np.ndarray]) -> bool:
    """Returns False if each value of the loss surely depends on one example alone."""
    y_true, y_pred = examples
    altered = y_true.copy(), y_pred.copy()
    for x in altered:
        x[0] = x[-1]
    pairs = [(y_true, y_pred), (altered[0], y_pred), (y_true, altered[1])]
    try:
        values = [np.asarray(loss.call(*map(tf.constant, x))) for x in pairs]
    except Exception:  # Whatever a user's loss raises on such values.
        return True
    if any(x.shape[:1] != (_NUM_ROWS,) or not np.isfinite(x).all() for x in values):
        return True
    return not all(np.allclose(values[0][1:], x[1:], 1e-5, 1e-6) for x in values)


def _is_mean(
    full: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    *,
    tolerance: _Tolerance = _ROUNDED,
) -> bool:
    return _is_close(full, (first + second) / 2, tolerance)


def _example(x: GraphTensor, random: np.random.Generator) -> np.ndarray:
    """Returns a random array for `x`: normal floats, or integers 0 and 1."""
    shape = [_FEW if size is None else size for size in x.spec.shape]
    if x.row_axis is not None:
        shape[x.row_axis] = _NUM_ROWS
    dtype = tf.as_dtype(x.spec.dtype)
    if dtype.is_floating:
        return random.normal(size=shape).astype(dtype.as_numpy_dtype)
    return random.integers(0, 2, shape).astype(dtype.as_numpy_dtype)


def _outputs(
    call: KerasCall, draws: RandomDraws, examples: dict[int, np.ndarray], part: slice
) -> list[np.ndarray]:
    def argument(x: GraphTensor) -> tf.Tensor:
        before = (slice(None),) * (x.row_axis or 0)
        rows = () if x.row_axis is None else (*before, part)
        return tf.constant(examples[x.number][rows])

    args, kwargs = call.arguments(argument)
    values = {id(v): v.value for v in call.variables}
    first, num_rows = tf.constant(part.start, tf.int64), part.stop - part.start
    scope = CellScope(values, call.variables, first, num_rows)
    with scope, known_draws(draws.belong):
        outputs = tree.flatten(
            private_names.run_operation(call.operation, True, args, kwargs)
        )
    if isinstance(call.operation, keras.Layer):
        private_names.forget_losses(call.operation)
    kinds = kinds_of(call.variables, [call.operation])
    state = [v for v, kind in zip(call.variables, kinds, strict=True) if kind.is_summed]
    written = [scope.get_current_value(v) for v in state]
    numbers = [*outputs, *written, *scope.losses]
    return [tf.cast(x, tf.float64).numpy() for x in numbers]


def _is_same(x: GraphTensor, full: Any, first: Any, second: Any) -> bool:
    if x.row_axis is None:  # Such as a mean over the mini-batch.
        return _is_close(full, first) and _is_close(full, second)
    return _is_close(full, np.concatenate([first, second], axis=x.row_axis))


def _is_close(a: np.ndarray, b: np.ndarray, tolerance: _Tolerance = _ROUNDED) -> bool:
    return a.shape == b.shape and np.allclose(a, b, *tolerance, equal_nan=True)
