"""A mutex for the runs of one pipeline.

A message names its channel, not the run that it belongs to. Two runs at a time, say of
two iterations of a loop, would receive one another's messages. So a run holds a lock
from the time its arguments exist until its results do.
"""

from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.stage_devices import colocated_identities

_LOCK_DEVICE = "/CPU:0"


def lock_run(name: str, arguments: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the lock of a mutex, by its name, for a run that must begin after it.

    It is taken only when all arguments of the run exist. Otherwise it could wait for a
    run that waits for the lock.
    """
    ready = tf.group(*arguments)
    with tf.device(_LOCK_DEVICE), tf.control_dependencies([ready]):
        mutex = tf.raw_ops.MutexV2(shared_name=name)
        return tf.raw_ops.MutexLock(mutex=mutex)


def unlock_run(lock: tf.Tensor, results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Releases the lock when all results exist, and returns them on their devices."""
    finished = tf.group(*results)
    with tf.device(_LOCK_DEVICE), tf.control_dependencies([finished]):
        released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    with tf.control_dependencies([released]):
        return colocated_identities(results)
