r"""A gradient for a run of a pipeline that leaves every tensor on its device.

    weights on device 0 --attach--> tie --.
    weights on device 1 --attach--> tie ---+--> release --> outputs on the last device
    inputs              --attach--> tie --'        ^
                                              raw outputs

tf.custom_gradient around the whole run would bring all weights to one device. Here each
device's weights leave an empty tensor, a tie, on their device, and the outputs are tied
to those: a tape sees the connection. When it asks `release` for gradients, the pipeline
runs backward once and finds all of them; each `attach` then hands out its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def with_gradient(
    outputs: Sequence[tf.Tensor],
    device: str,
    sources: Sequence[tuple[str, Sequence[tf.Tensor]]],
    gradients: Callable[[list[tf.Tensor]], Sequence[Sequence[Any]]],
) -> list[tf.Tensor]:
    """The outputs of a run, as a tape sees them.

    Args:
        outputs: what came out, of a run that no tape watched; floating or complex.
        device: where they are.
        sources: device by device, the tensors that they depend on.
        gradients: given the outputs' gradients returns those of the sources, in the
            structure of `sources`; None for what has none.

    Returns:
        The outputs, each with the gradient.
    """
    found: list[Sequence[Any]] = []
    ties = []
    for i, (source_device, tensors) in enumerate(sources):
        with tf.device(source_device):
            ties.append(_attach(tensors, functools.partial(found.__getitem__, i)))

    @tf.custom_gradient
    def release(*args: tf.Tensor) -> Any:
        def grad(*output_gradients: tf.Tensor) -> list[Any]:
            found[:] = gradients(list(output_gradients))
            return [None] * len(outputs) + [tf.zeros([0]) for _ in ties]

        return [tf.identity(x) for x in args[: len(outputs)]], grad

    with tf.device(device):
        return list(release(*outputs, *ties))


def _attach(
    tensors: Sequence[tf.Tensor], find: Callable[[], Sequence[Any]]
) -> tf.Tensor:
    """An empty tensor whose gradient asks `find` for those of `tensors`."""

    @tf.custom_gradient
    def attach(*args: tf.Tensor) -> Any:
        return tf.zeros([0]), lambda gradient: list(find())

    return attach(*tensors) if tensors else tf.zeros([0])
