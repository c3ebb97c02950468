"""The clock of loops."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.loops.while_loop import timestamp


@pytest.mark.parametrize("device", ["cpu:1", "gpu:5", "tpu:0"])
def test_a_device_without_a_clock_has_its_hosts_time(device: str) -> None:
    before = time.time()
    now = tf.function(lambda: timestamp(device))()
    assert before <= float(now) <= time.time()
