"""A device that does not compute any more is found after a step has failed."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf

from lingvo_pipe.fault_tolerance import device_faults
from lingvo_pipe.fault_tolerance.device_faults import failed_devices

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
# TensorFlow does not know it, so nothing is computed there.
FAILED = "/job:localhost/replica:0/task:0/device:CPU:4095"


def _internal() -> Exception:
    return tf.errors.InternalError(None, None, "CUDA_ERROR_ILLEGAL_ADDRESS")


def test_the_device_that_fails_again_is_named() -> None:
    assert failed_devices(_internal(), [HERE, FAILED]) == [FAILED]
    assert failed_devices(_internal(), [HERE]) == []


def test_an_error_that_another_one_caused_counts() -> None:
    error = RuntimeError("Some consequence.")
    error.__cause__ = _internal()
    assert failed_devices(error, [FAILED]) == [FAILED]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a user's"),
        tf.errors.InvalidArgumentError(None, None, "shapes"),
        tf.errors.ResourceExhaustedError(None, None, "memory"),
    ],
)
def test_no_device_is_asked_after_an_error_of_another_kind(error: Exception) -> None:
    assert failed_devices(error, [FAILED]) == []


def test_a_device_that_hangs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(device_faults, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(device_faults, "_compute", lambda *unused: over.wait(20))
    assert failed_devices(_internal(), [HERE]) == [HERE]
    over.set()
