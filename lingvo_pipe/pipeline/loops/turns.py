"""Lets the runs of one pipeline take turns.

A message says which channel it takes, not which run it belongs to. Two runs within one
step, say of two iterations of a loop, would receive one another's messages, so a run
holds a lock from when its arguments are there until its results are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.stage_devices import identities_in_place

_LOCK_DEVICE = "/CPU:0"


def take_turns(
    name: str,
    arguments: Sequence[tf.Tensor],
    emit: Callable[[], Sequence[tf.Tensor]],
) -> list[tf.Tensor]:
    """Emits what must not run twice at a time into the current graph.

    Args:
        name: of the lock; unlike any other's in this process.
        arguments: all tensors that the run needs. It takes the lock only when they are
            there, or it could wait for a run that waits for the lock.
        emit: emits the run; returns its results.

    Returns:
        The results, each on its device.
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
        return identities_in_place(results)
