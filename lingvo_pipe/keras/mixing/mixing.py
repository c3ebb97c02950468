"""Layers and losses whose results for one example depend on other examples.

In a micro-batch they see fewer examples, so results depend on the number of
micro-batches. Layers and Keras's own losses are run on a few random examples, at once
and in two parts. A layer's graph is read, too. A user's own loss counts as mixing.
"""

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from keras import tree

from lingvo_pipe.core.near_names import first_names
from lingvo_pipe.keras.cells import private_names
from lingvo_pipe.keras.cells.calls import KerasCall, calls_of
from lingvo_pipe.keras.cells.state import draws_of, is_norm
from lingvo_pipe.keras.mixing.call_graph import graph_of_call
from lingvo_pipe.keras.mixing.call_trial import call_mixes
from lingvo_pipe.keras.mixing.random_rows import (
    EXACT,
    FEW,
    ROWS,
    is_mean,
    random_values,
)

_MAX_NAMED = 3


def warn_of_layers(model: keras.Model, num_micro_batches: int) -> None:
    """Logs warnings of layers that mix examples, or assign variables in evaluations."""
    if num_micro_batches > 1:
        warn_of_mixing(model)
    for call in calls_of(model).calls:
        layer = call.operation
        if not isinstance(layer, keras.Layer) or not layer.variables:
            continue
        if not _is_of_user(call):
            continue
        graph = graph_of_call(call, draws_of(call, training=False), training=False)
        if graph is not None and graph.writes:
            logging.warning(
                "%s: layer %r assigns a weight in evaluations, too. Here they store "
                "nothing: assign it only if training.",
                model.name,
                layer.name,
            )


def warn_of_mixing(model: keras.Model) -> None:
    """Logs a warning for each layer that mixes examples."""
    for name in mixing_layers(model):
        warn_of(model.name, "layer", name)


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
    are tried only if they use axis 0 or something of the user's. Of each class of
    KerasHub, one layer is tried. Batch normalization does not count.
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
    return is_norm(layer) and layer.trainable


def _may_mix(call: KerasCall) -> bool:
    if draws_of(call, training=True).are_elsewhere:
        return True
    layer, modes = call.operation, [True, False]  # Whether in training.
    if isinstance(layer, keras.Layer):
        if not _is_of_user(call):
            return False
        if any(map(_normalizes, private_names.flat_layers(layer))):
            modes.remove(True)
    return any(_mixes(call, training) for training in modes)


def _mixes(call: KerasCall, training: bool) -> bool:
    """Returns whether a call mixes examples, or accepts no random ones."""
    draws = draws_of(call, training)
    if all(x.row_axis is None for x in call.taken):
        return False
    graph = graph_of_call(call, draws, training)
    if graph is not None and graph.mixes:
        return True
    has_gradient = graph is not None and graph.has_custom_gradient
    return call_mixes(call, draws, training, has_gradient) is not False


def _is_of_user(call: KerasCall) -> bool:
    """Returns whether a layer may do with examples what a user has written.

    The user may have written a layer or a cell within it, or a function, such as an
    activation. Keras's own layers may mix examples if they use axis 0.
    """
    layers = private_names.flat_layers(call.operation)
    functions = [
        value if hasattr(value, "__name__") else type(value)
        for x in layers
        for name, value in vars(x).items()
        if callable(value) and not hasattr(type(x), name)
    ]
    if not all(map(is_of_keras, (*map(type, layers), *functions))):
        return True
    of_examples = {0, *(-len(x.spec.shape) for x in call.taken)}
    axes = [tree.flatten(getattr(x, "axis", None)) for x in layers]
    return not of_examples.isdisjoint(itertools.chain(*axes))


def mixing_losses(compiled: Any, *given: Any) -> list[str]:
    """Returns the names of losses that mix examples, by specs of their arguments."""
    specs: list[list[keras.KerasTensor]] = []
    of_flat: list[bool] = []  # Whether Keras weights a mean over the examples.

    def note(y_true: Any, y_pred: Any, weight: Any) -> tf.Tensor:
        specs.append([keras.KerasTensor(x.shape, x.dtype) for x in (y_true, y_pred)])
        of_flat.append(len(y_pred.shape) < 2 and weight is not None)
        return tf.zeros([])

    losses = private_names.flat_losses(compiled)
    private_names.compute_output_spec(
        private_names.with_losses(compiled, [note] * len(losses)), *given
    )
    noted = zip(losses, specs, of_flat, strict=True)
    return [x.name for x, shapes, flat in noted if flat or loss_mixes(x, shapes)]


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
    """Returns whether a loss may mix examples, as a user's own loss always may.

    Keras's losses are compared on random values like `specs`, at once and in two parts.
    """
    if not all(map(is_of_keras, (type(loss), getattr(loss, "fn", type(loss))))):
        return True
    # What Keras's losses do with examples does not depend on their sizes.
    shapes = [[min(size or FEW, FEW) for size in x.shape[1:]] for x in specs]
    random = np.random.default_rng(0)
    examples = [
        random_values((ROWS[0].number, *shape), x.dtype, random)
        for shape, x in zip(shapes, specs, strict=True)
    ]
    # Outputs may be any numbers, or from 0 to 1.
    squashed = [1 / (1 + np.exp(-x)) if x.dtype.kind == "f" else x for x in examples]
    return _differs_on_parts(loss, examples) or _differs_on_parts(loss, squashed)


def is_of_keras(function: Any) -> bool:
    """Returns whether a function or a class is Keras's own."""
    module = inspect.getmodule(function)
    if module is None or not module.__name__.startswith("keras."):
        return False
    # A decorated function may only claim to be of Keras.
    return getattr(module, getattr(function, "__name__", ""), None) is function


def _differs_on_parts(loss: keras.Loss, examples: Sequence[np.ndarray]) -> bool:
    rows = ROWS[0]
    values = []
    for part in (rows.everything, *rows.parts):
        try:
            value = np.asarray(loss(*(x[part] for x in examples)), "float64")
        except Exception:  # The loss may not take these values.
            return False
        is_sum = loss.reduction == "sum"
        values.append(value / (part.stop - part.start) if is_sum else value)
    return not is_mean(values, rows, EXACT)
