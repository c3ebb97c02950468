"""Copies to a device's host and back run beside the device's operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.loops import host_copies
from lingvo_pipe.pipeline.loops.channel import Channel
from tests.pipeline.example_layers import gradients, pipeline

M = 6
PATIENCE = 300.0  # Seconds, on a busy machine.
LAST_COPY_SECONDS = 0.2


def test_only_the_two_copies_cross_between_a_gpu_and_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = {}

    def channel(name: str, source: str, target: str, *_: Any, **__: Any) -> None:
        ends[name.rpartition("/")[2]] = source[-5:], target[-5:]

    monkeypatch.setattr(host_copies, "Channel", channel)
    host_copies.HostCopies("copies", "/job:localhost/replica:0/task:0/device:GPU:1")
    gpu, host = "GPU:1", "CPU:0"
    assert ends.pop("to_host") == (gpu, host)
    assert ends.pop("to_device") == (host, gpu)
    assert ends == dict.fromkeys(["done", "request", "loaded"], (host, host))


class Copies:
    """The copies in one direction, each of which lasts until the next one begins.

    The last one has none to wait for, and lasts LAST_COPY_SECONDS.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self._changed = threading.Condition()

    def begin(self) -> None:
        self._note("begun")

    def copy(self) -> None:
        number = self.events.count("copied")
        if number == M - 1:
            time.sleep(LAST_COPY_SECONDS)
        else:
            with self._changed:
                assert self._changed.wait_for(
                    lambda: self.events.count("begun") > number + 1, PATIENCE
                )
        self._note("copied")

    def use(self) -> None:
        self._note("used")

    def _note(self, event: str) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()


Call = Callable[[], None] | None


class CallingChannel(Channel):
    """A channel that calls functions before it sends and after it has received."""

    def __init__(self, before: Call, after: Call, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._before, self._after = before, after

    def send(self, tensor: tf.Tensor) -> tf.Operation:
        return super().send(_calling(self._before, tensor))

    def receive(self) -> tf.Tensor:
        return _calling(self._after, super().receive())


def _calling(call: Call, tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that exists after a call, which comes after `tensor`."""
    if call is None:
        return tensor

    def run() -> np.float32:
        call()
        return np.float32(0)

    with tf.control_dependencies([tensor]):
        called = tf.numpy_function(run, [], tf.float32)
    with tf.control_dependencies([called]):
        return tf.identity(tensor)


def test_operations_run_during_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy ends after the next has begun, and is used after it has ended."""
    to_host, to_device = Copies(), Copies()
    calls: dict[str, tuple[Call, Call]] = {
        "to_host": (to_host.begin, to_host.copy),
        "done": (None, to_host.use),
        "request": (to_device.begin, None),
        "to_device": (None, to_device.copy),
        "loaded": (None, to_device.use),
    }

    def channel(name: str, *args: Any, **options: Any) -> Channel:
        return CallingChannel(*calls[name.rpartition("/")[2]], name, *args, **options)

    monkeypatch.setattr(host_copies, "Channel", channel)
    cells = [FCLayer.Params().Set(input_dim=3, output_dim=3) for _ in range(4)]
    batch = [tf.ones([24, 3])], NestedMap(label=tf.range(24) % 3, weight=tf.ones([24]))
    gradients(pipeline(cells, 1, M, offload="always"), batch)
    expected = ["begun", *["begun", "copied", "used"] * (M - 1), "copied", "used"]
    assert to_host.events == expected
    assert to_device.events == expected
