"""Layers and losses whose results for one example depend on other examples.

They see fewer examples in a micro-batch, so their results depend on the number of
micro-batches. Layers and Keras's own losses are run on a few random examples, at once
and in two halves. A layer's graph is read, too. A user's loss may always mix examples.
"""

import contextlib
import inspect
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
from lingvo_pipe.keras.row_flow import has_custom_gradient
from lingvo_pipe.keras.state import CellScope, RandomDraws, draws_of
from lingvo_pipe.keras.traced_call import FEW, TracedCall, run_call

_NUM_ROWS = 4
_PARTS = slice(0, _NUM_ROWS), slice(0, _NUM_ROWS // 2), slice(_NUM_ROWS // 2, _NUM_ROWS)
_Tolerance = tuple[float, float]  # Relative and absolute.
_ROUNDED: _Tolerance = (0.02, 1e-3)
_EXACT: _Tolerance = (1e-4, 1e-7)
_MAX_NAMED = 3


def warn_of_layers(model: keras.Model, num_micro_batches: int) -> None:
    """Logs a warning for each layer whose results may not be plain Keras's.

    They are layers that mix examples, and those that assign variables in evaluations.
    """
    if num_micro_batches > 1:
        for name in mixing_layers(model):
            warn_of(model.name, "layer", name)
    for call in calls_of(model).calls:
        layer = call.operation
        if isinstance(layer, keras.Layer) and layer.variables and _is_of_user(layer):
            with contextlib.suppress(Exception):  # Whatever a user's layer raises.
                draws = draws_of(call, training=False)
                if TracedCall(call, draws, training=False).writes:
                    logging.warning(
                        "%s: layer %r assigns a weight in evaluations, too. Here they "
                        "store nothing: assign it only if training.",
                        model.name,
                        layer.name,
                    )


def warn_of_normalization(model: keras.Model) -> None:
    """Logs a warning that names the layers that normalize by micro-batch moments."""
    if names := [x.name for x in private_names.flat_layers(model) if _normalizes(x)]:
        shown = first_names(list(map(repr, names)), _MAX_NAMED)
        verb = "normalizes" if len(names) == 1 else "normalize"
        text = "%s: %s %s by the moments of each micro-batch, as GPipe does."
        logging.warning(text, model.name, shown, verb)


def mixing_layers(model: keras.Model) -> list[str]:
    """Returns the names of layers that mix examples.

    A layer mixes them if its graph or its results for random values show it, or if it
    draws random numbers whose examples are not the first dimension. Keras's own layers
    are tried only if they are a Lambda or use axis 0. Of each class of KerasHub, one
    layer is tried. Layers with batch normalization, or that fail on random values, do
    not count.
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
    layer = call.operation
    if draws_of(call, training=True).are_elsewhere:
        return True
    if isinstance(layer, keras.Layer):
        normalizes = any(map(_normalizes, private_names.flat_layers(layer)))
        if normalizes or not _is_of_user(layer):
            return False
    if all(x.row_axis is None for x in call.taken):
        return False
    return any(_mixes(call, training) for training in (True, False))


def _is_of_user(layer: keras.Layer) -> bool:
    """Returns whether a layer may do with examples what a user has written."""
    has_axis = 0 in tree.flatten(getattr(layer, "axis", None))
    is_of_keras = type(layer).__module__.startswith("keras.src.layers.")
    return has_axis or not is_of_keras or isinstance(layer, keras.layers.Lambda)


def _mixes(call: KerasCall, training: bool) -> bool:
    draws = draws_of(call, training)
    random = np.random.default_rng(0)
    try:
        examples = {x.number: _example(x, random) for x in call.taken}
        outputs = [_outputs(call, draws, training, examples, x) for x in _PARTS]
        traced = TracedCall(call, draws, training)
        gradients = []
        if has_custom_gradient(traced.graph):
            gradients = [_gradients(call, draws, training, examples, x) for x in _PARTS]
    except Exception:  # Whatever a user's layer raises on such values.
        return False
    number = len(call.made)
    # A loss may have a small coefficient, such as 0.001 for load balancing.
    is_rounded = getattr(call.operation, "compute_dtype", None) in (
        "float16",
        "bfloat16",
    )
    tolerance = _ROUNDED if is_rounded else _EXACT
    return (
        traced.mixes
        or not all(map(_is_same, call.made, *outputs))
        # The pipeline takes the means of losses and of the state that layers write.
        or not all(
            _is_mean(*triple, tolerance=tolerance)
            for triple in zip(*(numbers[number:] for numbers in outputs), strict=True)
        )
        or not all(
            _is_close(full, first + second, _ROUNDED)
            for full, first, second in zip(*gradients, strict=True)
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
        "%s: %s %r may mix the examples of a mini-batch. It sees one micro-batch at a "
        "time, so results may depend on num_micro_batches.",
        model,
        kind,
        name,
    )


def loss_mixes(loss: keras.Loss, specs: Sequence[keras.KerasTensor]) -> bool:
    """Returns whether a loss may mix examples.

    A loss of the user may. Keras's own are compared on all rows and on halves of random
    values like `specs`.
    """
    if not all(map(is_of_keras, (type(loss), getattr(loss, "fn", type(loss))))):
        return True
    # What Keras's losses do with examples does not depend on their sizes.
    shapes = [[min(size or FEW, FEW) for size in x.shape[1:]] for x in specs]
    random = np.random.default_rng(0)
    rows = [
        GraphTensor(0, keras.KerasTensor((None, *shape), x.dtype))
        for shape, x in zip(shapes, specs, strict=True)
    ]
    examples = [_example(x, random) for x in rows]
    # Outputs may be any numbers, or from 0 to 1.
    squashed = [1 / (1 + np.exp(-x)) if x.dtype.kind == "f" else x for x in examples]
    return _differs_on_halves(loss, examples) or _differs_on_halves(loss, squashed)


def is_of_keras(function: Any) -> bool:
    """Returns whether a function or a class is Keras's own."""
    module = inspect.getmodule(function)
    if module is None or not module.__name__.startswith("keras."):
        return False
    # A decorated function may only claim to be of Keras.
    return getattr(module, getattr(function, "__name__", ""), None) is function


def _differs_on_halves(loss: keras.Loss, examples: Sequence[np.ndarray]) -> bool:
    try:
        values = [
            np.asarray(loss(*(x[part] for x in examples)), "float64") for part in _PARTS
        ]
    except Exception:  # The loss may not take these values.
        return False
    if loss.reduction == "sum":
        values[0] = values[0] / 2
    return not _is_mean(*values)


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
    shape = [FEW if size is None else size for size in x.spec.shape]
    if x.row_axis is not None:
        shape[x.row_axis] = _NUM_ROWS
    dtype = tf.as_dtype(x.spec.dtype)
    if dtype.is_floating:
        return random.normal(size=shape).astype(dtype.as_numpy_dtype)
    return random.integers(0, 2, shape).astype(dtype.as_numpy_dtype)


def _outputs(
    call: KerasCall,
    draws: RandomDraws,
    training: bool,
    examples: dict[int, np.ndarray],
    part: slice,
) -> list[np.ndarray]:
    """Returns a call's outputs for some examples, then what it writes, then losses."""
    inputs = {number: tf.constant(x) for number, x in examples.items()}
    outputs, sums = _run_part(call, draws, training, inputs, part)
    return [tf.cast(x, tf.float64).numpy() for x in (*outputs, *sums)]


def _gradients(
    call: KerasCall,
    draws: RandomDraws,
    training: bool,
    examples: dict[int, np.ndarray],
    part: slice,
) -> list[np.ndarray]:
    """Returns gradients of a random sum of outputs, of inputs with zeros elsewhere."""
    random = np.random.default_rng(1)
    taken = [x for x in call.taken if x.row_axis is not None]
    inputs = {x.number: tf.constant(examples[x.number]) for x in call.taken}
    weights = [v.value for v in call.variables if v.trainable]
    with tf.GradientTape() as tape:
        tape.watch([inputs[x.number] for x in taken])
        outputs, _ = _run_part(call, draws, training, inputs, part)
        total = tf.zeros([], tf.float64)
        for output, x in zip(outputs, call.made, strict=True):
            shape = [_NUM_ROWS if n is None else n for n in x.spec.shape]
            factors = _rows(tf.constant(random.normal(size=shape)), x, part)
            if output.dtype.is_floating:
                total += tf.reduce_sum(tf.cast(output, tf.float64) * factors)
    sources = [*(inputs[x.number] for x in taken), *weights]
    gradients = tape.gradient(total, sources, unconnected_gradients="zero")
    return [
        tf.cast(tf.convert_to_tensor(x), tf.float64).numpy()
        for x in gradients
        if x is not None
    ]


def _run_part(
    call: KerasCall,
    draws: RandomDraws,
    training: bool,
    inputs: dict[int, tf.Tensor],
    part: slice,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Runs a call on some rows of its inputs, by number. See `run_call`."""
    first, num_rows = tf.constant(part.start, tf.int64), part.stop - part.start
    scope = CellScope.of_call(call, first, num_rows)

    def argument(x: GraphTensor) -> tf.Tensor:
        return _rows(inputs[x.number], x, part)

    return run_call(call, draws, training, scope, argument)


def _rows(value: tf.Tensor, x: GraphTensor, part: slice) -> tf.Tensor:
    """Returns some rows of a value of `x`, or all of it if it has no rows."""
    if x.row_axis is None:
        return value
    return value[(*(slice(None),) * x.row_axis, part)]


def _is_same(x: GraphTensor, full: Any, first: Any, second: Any) -> bool:
    if x.row_axis is None:  # Such as a mean over the mini-batch.
        return _is_close(full, first) and _is_close(full, second)
    return _is_close(full, np.concatenate([first, second], axis=x.row_axis))


def _is_close(a: np.ndarray, b: np.ndarray, tolerance: _Tolerance = _ROUNDED) -> bool:
    return a.shape == b.shape and np.allclose(a, b, *tolerance, equal_nan=True)
