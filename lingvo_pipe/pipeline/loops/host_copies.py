r"""Copies of a stage's residuals to the host and back, beside the stage's loop.

    the stage's loop              loops beside it

    forward   -- residuals -->    to the host, then  -- done -->   offload
    load      -- request -->      to the device, then -- residuals -->   backward

Each of the two loops makes one copy after another. Between them, a copy waits in the
queue of a channel. TensorFlow copies a message when it is received, so the message
takes memory of the host while it waits there, and of the device after the request.
"""

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.loops.channel import Channel
from lingvo_pipe.pipeline.loops.stash import Pack
from lingvo_pipe.pipeline.loops.while_loop import repeat

_PACK = tf.TensorSpec([], tf.variant)
_SIGNAL = tf.TensorSpec([], tf.bool)


class HostCopies:
    """The copies of one stage. Messages are packs, one for each micro-batch."""

    def __init__(self, name: str, device: str):
        """Initializes the copies. `name` must be unique in a step."""
        self._device, self._host = device, device_name(device).host.full
        there, here = (device, self._host), (self._host, device)
        within = (self._host, self._host)  # So TensorFlow makes no copy of it.

        def channel(suffix: str, ends: tuple[str, str], spec: tf.TensorSpec) -> Channel:
            return Channel(f"{name}/{suffix}", *ends, spec, is_urgent=False)

        self._to_host = channel("to_host", there, _PACK)
        self._done = channel("done", within, _SIGNAL)
        self._to_device = channel("to_device", here, _PACK)
        self._request = channel("request", within, _SIGNAL)
        self._loaded = channel("loaded", within, _PACK)

    def begin_offload(self, residuals: Pack) -> tf.Operation:
        """Begins a copy to the host."""
        (pack,) = residuals
        return self._to_host.send(pack)

    def end_offload(self) -> tf.Tensor:
        """Returns a signal that exists when the next copy to the host is complete."""
        return self._done.receive()

    def begin_load(self) -> tf.Operation:
        """Begins the next copy to the device."""
        return self._request.send(tf.constant(True))

    def end_load(self) -> Pack:
        """Returns the next copy on the device."""
        return [self._loaded.receive()]

    def emit(self, number: tf.Tensor) -> list[tf.Tensor]:
        """Adds the loops for `number` ([] int32) copies. The results exist at the end.

        The first `begin_offload` may come later.
        """
        with tf.device(self._host):
            offloaded = repeat(number, self._copy_to_host)
        with tf.device(self._device):
            loaded = repeat(number, self._copy_to_device)
        return [offloaded, loaded]

    def _copy_to_host(self) -> list[tf.Operation]:
        pack = self._to_host.receive()
        with tf.control_dependencies([pack]):
            return [self._done.send(tf.constant(True)), self._to_device.send(pack)]

    def _copy_to_device(self) -> list[tf.Operation]:
        with tf.control_dependencies([self._request.receive()]):
            return [self._loaded.send(self._to_device.receive())]
