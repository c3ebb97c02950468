"""A mutex for the runs of one pipeline.

A message names its channel, not its run. If two runs took place at the same time, for
instance in two iterations of a loop, they would receive each other's messages. So a run
holds a lock from the time when its arguments exist until its results exist.
"""

from collections.abc import Sequence

import tensorflow as tf

_LOCK_DEVICE = "/CPU:0"


def lock_run(name: str, arguments: Sequence[tf.Tensor]) -> tf.Tensor:
    """Takes the lock of the mutex `name`. The run must wait for the returned tensor.

    The lock is taken only when all arguments of the run exist. If it were taken
    earlier, an argument could come from another run, and that run waits for the lock.
    """
    ready = tf.group(*arguments)
    with tf.device(_LOCK_DEVICE), tf.control_dependencies([ready]):
        mutex = tf.raw_ops.MutexV2(shared_name=name)
        return tf.raw_ops.MutexLock(mutex=mutex)


def unlock_run(lock: tf.Tensor, results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Releases the lock when all results exist. Returns copies that wait until then."""
    finished = tf.group(*results)
    with tf.device(_LOCK_DEVICE), tf.control_dependencies([finished]):
        released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    with tf.control_dependencies([released]):
        return _colocated_copies(results)


def _colocated_copies(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    all_copies = list(tensors)
    for device in dict.fromkeys(x.device for x in tensors):
        indices = [i for i, x in enumerate(tensors) if x.device == device]
        with tf.device(device):
            copies = tf.raw_ops.IdentityN(input=[tensors[i] for i in indices])
        for i, copy in zip(indices, copies, strict=True):
            all_copies[i] = copy
    return all_copies
