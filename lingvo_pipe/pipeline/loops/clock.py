"""What time it is on a device."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import device_name


def timestamp(device: str) -> tf.Tensor:
    """Emits [] float64 seconds, the time when the operation runs on `device`.

    Only processors have a clock. A loop on another device asks its host's, by a call:
    within a loop's body operations run where the loop does, but a call's where they
    are placed.
    """
    name = device_name(device)
    if name.kind == "CPU":
        return tf.timestamp()
    return _clock_of(name.host.full)()


@functools.cache
def _clock_of(host: str) -> Callable[[], tf.Tensor]:
    def now() -> tf.Tensor:
        with tf.device(host):
            return tf.timestamp()

    return tf.function(
        now, autograph=False, experimental_attributes={"_noinline": True}
    )
