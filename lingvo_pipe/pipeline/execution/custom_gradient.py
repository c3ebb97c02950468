r"""A custom gradient for a pipeline run that leaves every tensor on its device.

    weights on device 0 --attach--> tie --.
    weights on device 1 --attach--> tie ---+--> release --> outputs of the last stage
    inputs              --attach--> tie --'        ^
                                              raw outputs

A gradient around the whole run would copy all weights to one device. Here `attach`
makes a tie for the weights of each device: an empty tensor on that device. The outputs
depend on the ties, so a tape sees that they depend on the weights. When the tape asks
`release` for gradients, the pipeline runs backward once and computes the gradients of
all weights and inputs. Each `attach` then returns the gradients of its own tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.graph_gradient import custom_gradient
from lingvo_pipe.core.nests import map_present, pack_present, present
from lingvo_pipe.pipeline.tracing.trace import differentiable, is_differentiable


def with_gradient(
    outputs: Any,
    device: str,
    sources: Sequence[tuple[str, Sequence[tf.Tensor]]],
    gradients: Callable[[list[tf.Tensor]], Sequence[Sequence[Any]]],
) -> Any:
    """Returns a run's outputs with a custom gradient, which tapes use.

    No tape watched the run. Its outputs, on `device`, depend on the tensors of
    `sources`, pairs (device, tensors on this device). `gradients` maps the gradients of
    the differentiable outputs, flat, to the gradients of each source's tensors, with
    None for no gradient.
    """
    flat = differentiable(outputs)
    source_gradients: list[Sequence[Any]] = []
    ties = []
    for i, (source_device, tensors) in enumerate(sources):
        with tf.device(source_device):
            ties.append(_attach(tensors, source_gradients, i))

    @custom_gradient
    def release(*args: tf.Tensor) -> Any:
        def grad(*output_gradients: tf.Tensor) -> list[Any]:
            seeds = _on_own_devices(tf.stop_gradient, output_gradients)
            source_gradients[:] = _final(gradients(seeds), [*ties, *output_gradients])
            return [None] * len(flat) + [tf.zeros([0]) for _ in ties]

        return [tf.identity(x) for x in args[: len(flat)]], grad

    with tf.device(device):
        released = iter(release(*flat, *ties))
    return map_present(lambda x: next(released) if is_differentiable(x) else x, outputs)


def _final(
    gradients: Sequence[Sequence[Any]], sources: Sequence[tf.Tensor]
) -> list[list[Any]]:
    """Returns the gradients. An attempt to differentiate them raises an error.

    Otherwise a tape would treat the gradients as constants, because no tape watched the
    run that computed them. Here a tape sees that the gradients depend on `sources`.
    """
    flat = present(gradients)

    @custom_gradient
    def final(*args: tf.Tensor) -> Any:
        return _on_own_devices(tf.identity, args[: len(flat)]), _refuse_second

    return pack_present(list(map(list, gradients)), final(*flat, *sources))


def _on_own_devices(
    operation: Callable[[tf.Tensor], tf.Tensor], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    results = []
    for x in tensors:
        with tf.device(x.device):
            results.append(operation(x))
    return results


def _refuse_second(*unused: tf.Tensor) -> list[Any]:
    raise UserValueError(
        "A PipeliningLayer has no second derivatives.",
        hint="For a penalty on gradients use the layers without a pipeline.",
    )


def _attach(
    tensors: Sequence[tf.Tensor], source_gradients: Sequence[Sequence[Any]], i: int
) -> tf.Tensor:
    """Returns an empty tensor, which depends on `tensors`.

    A tape gets their gradients from `source_gradients[i]`, which the run's gradient has
    set before. Only a tf.autodiff.ForwardAccumulator asks for them earlier.
    """

    def gradient(unused: tf.Tensor) -> list[Any]:
        if not source_gradients:
            raise UserValueError(
                "A PipeliningLayer has no forward-mode derivatives.",
                hint="Use a tf.GradientTape, or the layers without a pipeline.",
            )
        return list(source_gradients[i])

    @custom_gradient
    def attach(*args: tf.Tensor) -> Any:
        return [tf.zeros([0])], gradient

    return attach(*tensors)[0] if tensors else tf.zeros([0])
