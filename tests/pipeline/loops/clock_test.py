from __future__ import annotations

import time

import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.loops.clock import timestamp


@pytest.mark.parametrize("device", ["cpu:1", "gpu:5", "tpu:0"])
def test_it_is_the_time_even_where_there_is_no_clock(device: str) -> None:
    before = time.time()
    now = tf.function(lambda: timestamp(device))()
    assert before <= float(now) <= time.time()
