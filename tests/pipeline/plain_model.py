"""The plain model: the cells one after another under an ordinary gradient tape.

A pipeline computes the bytes of the plain model that accumulates gradients over the
same micro-batches. On the mini-batch as a whole the plain model's results are the same
up to rounding: some processors add a row of a product in an order that depends on the
number of rows.

Shapes: B examples, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.nests import map_present, present
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import loss_fn, plain_outputs


def plain_gradients(
    layer: PipeliningLayer,
    batch: Any,
    loss: Any = loss_fn,
    first_example: int = 0,
    step: int = 3,
) -> NestedMap:
    """Results of the cells for a batch as a whole.

    Args:
        layer: the pipeline.
        batch: inputs and targets.
        loss: see `ComputeGradients`.
        first_example: index of the batch's first example.
        step: the training step.

    Returns:
        NestedMap(metrics, gradients: dict by path of the trained weights, context).
    """
    inputs, targets = batch
    trained = {k: v for k, v in layer.VariablePaths().items() if v.trainable}
    context = _context(step, first_example, batch_dim=layer.params.batch_dim)
    with context, tf.GradientTape() as tape:
        metrics = loss(plain_outputs(layer, inputs), targets)
        total = metrics.loss[0]
        for auxiliary in context.losses.values():
            mean = auxiliary / num_examples(inputs, context.batch_dim)
            total += tf.cast(mean, total.dtype)
    found = tape.gradient(total, list(trained.values()), unconnected_gradients="zero")
    arrays = [tf.convert_to_tensor(g).numpy() for g in found]
    return NestedMap(
        metrics=metrics,
        gradients=dict(zip(trained, arrays, strict=True)),
        context=context,
    )


def accumulated_gradients(
    layer: PipeliningLayer, batch: Any, loss: Any = loss_fn, step: int = 3
) -> dict[str, np.ndarray]:
    """Returns the gradients of M micro-batches, added in their order, by path.

    M divides B.
    """
    num_micro_batches = layer.params.num_micro_batches
    trained = {k: v for k, v in layer.VariablePaths().items() if v.trainable}
    gradient_sums, weight_sum = [tf.zeros_like(v) for v in trained.values()], 0.0
    for (inputs, targets), first in micro_batches(batch, num_micro_batches):
        with _context(step, first), tf.GradientTape() as tape:
            mean, weight = loss(plain_outputs(layer, inputs), targets).loss
            total = mean * weight
        gradients = tape.gradient(
            total, list(trained.values()), unconnected_gradients="zero"
        )
        weight_sum += weight
        gradient_sums = [
            gradient_sum + gradient
            for gradient_sum, gradient in zip(gradient_sums, gradients, strict=True)
        ]
    return {
        path: (gradient_sum / tf.cast(weight_sum, gradient_sum.dtype)).numpy()
        for path, gradient_sum in zip(trained, gradient_sums, strict=True)
    }


def micro_batched_outputs(
    layer: PipeliningLayer, inputs: Any, step: int = 3, do_eval: bool = False
) -> Any:
    """Returns the cells' outputs for M micro-batches in their order. M divides B."""
    outputs = []
    for part, first in micro_batches(inputs, layer.params.num_micro_batches):
        with _context(step, first, do_eval=do_eval):
            outputs.append(plain_outputs(layer, part))
    return tf.nest.map_structure(
        lambda *parts: None if parts[0] is None else tf.concat(parts, 0), *outputs
    )


def micro_batches(batch: Any, num_micro_batches: int) -> Iterator[tuple[Any, int]]:
    """Yields each micro-batch and the index of its first example. M divides B."""
    batch_size = len(present(batch)[0])
    assert batch_size % num_micro_batches == 0
    num_rows = batch_size // num_micro_batches
    for first in range(0, batch_size, num_rows):
        yield map_present(lambda x, i=first: x[i : i + num_rows], batch), first


def _context(step: int, first_example: int, **options: Any) -> ForwardContext:
    return ForwardContext(
        step=tf.constant(step, tf.int64),
        first_example=tf.constant(first_example, tf.int64),
        **options,
    )


def gradient_magnitudes(
    layer: PipeliningLayer, batch: Any, loss: Any = loss_fn
) -> dict[str, np.ndarray]:
    """Returns the gradients if the shares of all examples had the same sign.

    Rounding errors of a gradient are in proportion to them, even where much cancels.
    """
    num_rows = num_examples(batch[0])
    magnitudes: dict[str, np.ndarray] = {}
    total_weight = 0.0
    for i in range(num_rows):
        row = map_present(lambda x, i=i: x[i : i + 1], batch)
        plain = plain_gradients(layer, row, loss, first_example=i)
        weight = float(plain.metrics.loss[1])
        total_weight += weight
        for path, gradient in plain.gradients.items():
            share = weight * np.abs(gradient)
            magnitudes[path] = magnitudes.get(path, 0.0) + share
    return {path: total / total_weight for path, total in magnitudes.items()}


def assert_same_up_to_rounding(
    got: dict[str, Any],
    want: dict[str, Any],
    magnitudes: dict[str, np.ndarray],
    tolerance: float,
) -> None:
    """Asserts that errors are within `tolerance` of the magnitudes, as vectors."""
    assert got.keys() == want.keys()
    for path, value in want.items():
        error = np.linalg.norm(got[path] - value)
        assert error <= tolerance * np.linalg.norm(magnitudes[path]), path


def num_examples(inputs: list[tf.Tensor], batch_dim: int = 0) -> int:
    return inputs[0].shape[min(batch_dim, inputs[0].shape.rank - 1)]


def by_path(layer: PipeliningLayer, tree: NestedMap) -> dict[str, Any]:
    """Returns the present values of a tree like `vars`, by the variables' paths."""
    paths = {v.ref(): path for path, v in layer.VariablePaths().items()}
    pairs = zip(tf.nest.flatten(layer.vars), tf.nest.flatten(tree), strict=True)
    return {paths[v.ref()]: g.numpy() for v, g in pairs if g is not None}


def assert_same_bytes(got: dict[str, Any], want: dict[str, Any]) -> None:
    """Asserts that arrays are equal, by path."""
    assert got.keys() == want.keys()
    for path, value in want.items():
        np.testing.assert_array_equal(got[path], value, err_msg=path, strict=True)
        assert got[path].tobytes() == value.tobytes(), path


def assert_close(
    got: dict[str, Any], want: dict[str, Any], tolerance: float, least: float = 0.0
) -> None:
    """Asserts errors within `tolerance` of max(largest value, `least`)."""
    assert got.keys() == want.keys()
    for path, value in want.items():
        scale = max(float(np.abs(value).max()), least)
        np.testing.assert_allclose(
            got[path], value, rtol=0, atol=tolerance * scale, err_msg=path
        )


def bytes_of(structure: Any) -> list[bytes]:
    """Returns the tensors of a structure as bytes."""
    return [x.numpy().tobytes() for x in tf.nest.flatten(structure) if x is not None]
