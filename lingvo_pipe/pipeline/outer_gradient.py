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

from lingvo_pipe.optional_nest import map_present, present
from lingvo_pipe.pipeline.devices.stage_devices import identity_in_place
from lingvo_pipe.pipeline.tracing.trace import differentiable, is_differentiable


def with_gradient(
    outputs: Any,
    device: str,
    sources: Sequence[tuple[str, Sequence[tf.Tensor]]],
    gradients: Callable[[list[tf.Tensor]], Sequence[Sequence[Any]]],
) -> Any:
    """The outputs of a run, as a tape sees them.

    Args:
        outputs: structure of what came out, of a run that no tape watched.
        device: where they are.
        sources: device by device, the tensors that they depend on.
        gradients: given those of the outputs that have any, flat, returns those of the
            sources, in the structure of `sources`; None for what has none.

    Returns:
        The outputs, each that is differentiable with the gradient.
    """
    flat = differentiable(outputs)
    found: list[Sequence[Any]] = []
    ties = []
    for i, (source_device, tensors) in enumerate(sources):
        with tf.device(source_device):
            ties.append(_attach(tensors, functools.partial(found.__getitem__, i)))

    @tf.custom_gradient
    def release(*args: tf.Tensor) -> Any:
        def grad(*output_gradients: tf.Tensor) -> list[Any]:
            seeds = list(map(_stopped, output_gradients))
            found[:] = _final(gradients(seeds), [*ties, *output_gradients])
            return [None] * len(flat) + [tf.zeros([0]) for _ in ties]

        return [tf.identity(x) for x in args[: len(flat)]], grad

    with tf.device(device):
        seen = iter(release(*flat, *ties))
    return map_present(lambda x: next(seen) if is_differentiable(x) else x, outputs)


def _stopped(x: tf.Tensor) -> tf.Tensor:
    with tf.device(x.device):
        return tf.stop_gradient(x)


def _final(
    gradients: Sequence[Sequence[Any]], sources: Sequence[tf.Tensor]
) -> list[list[Any]]:
    """The gradients, of which no tape can take gradients in turn.

    To a tape they would be constants: they came out of a run that none watched.

    Args:
        gradients: as of `with_gradient`.
        sources: what they depend on, as a tape sees it.
    """
    flat = present(gradients)

    @tf.custom_gradient
    def final(*args: tf.Tensor) -> Any:
        return [identity_in_place(x) for x in args[: len(flat)]], _refuse_second

    remaining = iter(final(*flat, *sources))
    return [
        [None if x is None else next(remaining) for x in of_source]
        for of_source in gradients
    ]


def _refuse_second(*unused: tf.Tensor) -> list[Any]:
    raise ValueError(
        "The gradient of a PipeliningLayer has no gradient: it comes from a run that "
        "keeps nothing. A penalty on gradients needs the layers outside a pipeline."
    )


def _attach(
    tensors: Sequence[tf.Tensor], find: Callable[[], Sequence[Any]]
) -> tf.Tensor:
    """An empty tensor whose gradient asks `find` for those of `tensors`."""

    @tf.custom_gradient
    def attach(*args: tf.Tensor) -> Any:
        return tf.zeros([0]), lambda gradient: list(find())

    return attach(*tensors) if tensors else tf.zeros([0])
