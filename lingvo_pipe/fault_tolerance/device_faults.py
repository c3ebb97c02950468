"""A search for devices that have failed, after a step with an error.

TensorFlow's errors rarely name the device. But a GPU that has failed fails every later
operation, too. So each device is asked for a sum.
"""

import contextlib
import threading
import time
from collections.abc import Sequence

import tensorflow as tf

_ANSWER_SECONDS = 30.0
_NUM_ONES = 1000
# Errors that have other causes than a device, and for which no device is asked.
_OTHER_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.OutOfRangeError,
    tf.errors.ResourceExhaustedError,
)


def operation_error(error: BaseException) -> tf.errors.OpError | None:
    """Returns TensorFlow's error that is or caused `error`, or None."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, tf.errors.OpError):
        seen = seen.__cause__ or seen.__context__
    return seen


def failed_devices(error: BaseException, devices: Sequence[str]) -> list[str]:
    """Returns the devices that do not compute any more after a step failed.

    `devices` are full names. Returns [] if no device could have caused the error.
    """
    cause = operation_error(error)
    if cause is None or isinstance(cause, _OTHER_ERRORS):
        return []
    computes = {device: threading.Event() for device in devices}
    threads = [
        threading.Thread(target=_compute, args=pair, daemon=True)
        for pair in computes.items()
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + _ANSWER_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [device for device, answer in computes.items() if not answer.is_set()]


def _compute(device: str, answer: threading.Event) -> None:
    with contextlib.suppress(Exception):
        with tf.device(device):
            total = tf.reduce_sum(tf.ones([_NUM_ONES]))
        # TensorFlow may compute it elsewhere.
        if total.device == device and total.numpy() == _NUM_ONES:
            answer.set()
