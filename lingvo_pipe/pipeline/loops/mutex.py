"""A mutex for the runs of one pipeline.

A message names its channel, not the run that it belongs to. Two runs at a time, say of
two iterations of a loop, would receive one another's messages. So a run holds a lock
from the time its arguments exist until its results do.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.stage_devices import colocated_identities

_LOCK_DEVICE = "/CPU:0"


def with_mutex(
    name: str,
    arguments: Sequence[tf.Tensor],
    emit: Callable[[], Sequence[tf.Tensor]],
) -> list[tf.Tensor]:
    """Emits a run that must not overlap with another of the same mutex, by its name.

    It takes the lock only when all its arguments exist; otherwise it could wait for a
    run that waits for the lock. Returns the results of `emit`, each on its device.
    """
    ready = tf.group(*arguments)
    with tf.device(_LOCK_DEVICE), tf.control_dependencies([ready]):
        mutex = tf.raw_ops.MutexV2(shared_name=name)
        lock = tf.raw_ops.MutexLock(mutex=mutex)
    with tf.control_dependencies([lock]):
        results = emit()
    finished = tf.group(*results)
    with tf.device(_LOCK_DEVICE), tf.control_dependencies([finished]):
        released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    with tf.control_dependencies([released]):
        return colocated_identities(results)
