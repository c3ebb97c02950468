"""Runs a layer, or its slices one after another, and returns all that it computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.nests import as_args, map_present, present, spec_of
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.layers.core.slicing import (
    NumSlices,
    pieces_by_path,
    slice_name,
    slices_of,
    whole_path,
)


class Computed(NamedTuple):
    """Outputs, gradients of inputs, and weights and their gradients by path."""

    outputs: list[np.ndarray]
    input_gradients: list[np.ndarray]
    weights: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]


def layers_of(p: InstantiableParams, num_slices: NumSlices | None) -> list[Any]:
    """Creates the cells that a cell becomes; itself if `num_slices` is None."""
    if num_slices is None:
        return [p.Copy().Set(name="cell").Instantiate()]
    return [
        piece.Set(name=slice_name("cell", j)).Instantiate()
        for j, piece in enumerate(slices_of(p.Copy().Set(name="cell"), num_slices))
    ]


def compute(layers: Sequence[Any], inputs: Sequence[Any], loss: Any = None) -> Computed:
    """Runs the layers in order, forward and backward, in training.

    `loss` maps outputs to a number; if None, a sum with another weight for each output.
    """
    floating = [x for x in present(inputs) if x.dtype.is_floating]
    variables = {k: v for layer in layers for k, v in layer.VariablePaths().items()}
    pieces = {k: v for layer in layers for k, v in pieces_by_path(layer).items()}
    with tf.GradientTape() as tape:
        tape.watch(floating)
        outputs: Any = tuple(inputs)
        for layer in layers:
            with ForwardContext(step=tf.constant(3, tf.int64), first_example=0):
                outputs = as_args(layer.FPropDefaultTheta(*outputs))
        total = loss(*outputs) if loss else weighted_sum(outputs)
    sources = [*floating, *variables.values()]
    found = tape.gradient(total, sources, unconnected_gradients="zero")
    found = [tf.convert_to_tensor(x).numpy() for x in found]
    by_path = dict(zip(variables, found[len(floating) :], strict=True))
    return Computed(
        [x.numpy() for x in present(outputs)] if not loss else [total.numpy()],
        found[: len(floating)],
        _joined({k: v.numpy() for k, v in variables.items()}, pieces),
        _joined(by_path, pieces),
    )


def assert_same(found: Computed, want: Computed, tolerance: float) -> None:
    """Fails unless all is equal within a tolerance of its largest value.

    All weights' gradients have one largest value, since some are 0 but for rounding.
    """
    assert found.weights.keys() == want.weights.keys()
    for path, value in want.weights.items():
        np.testing.assert_array_equal(found.weights[path], value)
    assert found.gradients.keys() == want.gradients.keys()
    largest = max((np.abs(x).max() for x in want.gradients.values()), default=0.0)
    for path, gradient in want.gradients.items():
        _assert_near(found.gradients[path], gradient, tolerance * largest, path)
    for field in ("outputs", "input_gradients"):
        pairs = zip(getattr(found, field), getattr(want, field), strict=True)
        for a, b in pairs:
            _assert_near(a, b, tolerance * np.abs(b).max(), field)


def assert_costs_add_up(
    p: InstantiableParams, num_slices: int, inputs: Sequence[Any], max_ratio: float
) -> None:
    """Fails unless slices take one to `max_ratio` times the flops of the layer."""
    specs = map_present(spec_of, list(inputs))
    (whole,) = layer_sizes([p], *specs)
    sizes = layer_sizes(slices_of(p, num_slices), *specs)
    assert sizes[-1].outputs == whole.outputs
    assert whole.flops <= sum(size.flops for size in sizes) <= max_ratio * whole.flops


def _assert_near(a: np.ndarray, b: np.ndarray, distance: float, what: str) -> None:
    assert a.shape == b.shape, what
    assert np.abs(a - b).max() <= distance, what


def weighted_sum(outputs: Any) -> tf.Tensor:
    """Returns a loss in which every element has another weight."""
    floating = [x for x in present(outputs) if x.dtype.is_floating]
    draw = tf.random.stateless_normal
    weights = [draw(x.shape, [9, i], dtype=x.dtype) for i, x in enumerate(floating)]
    return tf.add_n(
        [tf.reduce_sum(x * w) for x, w in zip(floating, weights, strict=True)]
    )


def _joined(values: dict[str, np.ndarray], pieces: Any) -> dict[str, np.ndarray]:
    groups: dict[str, list[str]] = {}
    for path in values:
        groups.setdefault(whole_path(path), []).append(path)
    return {
        whole: np.concatenate([values[k] for k in paths], pieces[paths[0]].axis)
        if paths[0] in pieces
        else values[paths[0]]
        for whole, paths in groups.items()
    }
