"""What is built once is kept, and many that are kept are warned of."""

from __future__ import annotations

import logging
import re

import pytest
import tensorflow as tf

from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.pipeline.built_once import BuiltOnce
from tests.pipeline.before_models import make_batch, pipeline_of


@pytest.fixture
def warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The warnings of TensorFlow's logger."""
    monkeypatch.setattr(tf.get_logger(), "propagate", True)
    caplog.set_level(logging.WARNING, tf.get_logger().name)
    return caplog


def test_a_key_is_built_once() -> None:
    cache: BuiltOnce[list] = BuiltOnce("It", "Take fewer.")
    first = cache.get(1, list)
    assert cache.get(2, lambda: ["other"]) == ["other"]
    assert cache.get(1, lambda: ["other"]) is first
    assert cache.built == [[], ["other"]]


def test_what_fails_is_built_at_the_next_use() -> None:
    cache: BuiltOnce[int] = BuiltOnce("It", "Take fewer.")
    with pytest.raises(ZeroDivisionError):
        cache.get(1, lambda: 1 // 0)
    assert cache.get(1, lambda: 3) == 3


def test_many_are_warned_of_once_with_advice(
    warnings: pytest.LogCaptureFixture,
) -> None:
    cache: BuiltOnce[int] = BuiltOnce("model/pipe", "Take fewer.")
    for key in [*range(8), *range(8)]:
        cache.get(key, int)
    assert not warnings.messages
    for key in range(20):
        cache.get(key, int)
    (message,) = warnings.messages
    assert re.search(r"\bmodel/pipe\b.*\b8\b", message)
    assert message.endswith("Take fewer.")


def test_a_pipeline_and_what_is_before_it_warn_of_batches_of_many_shapes(
    warnings: pytest.LogCaptureFixture,
) -> None:
    layer = pipeline_of("sums", num_stages=1, num_micro_batches=1)
    with ForwardContext(do_eval=True):
        for size in range(1, 10):
            layer.FProp(layer.theta, *make_batch(size)[0])
    told = warnings.messages
    assert len(told) == 2
    assert all(re.search(r"\bpipe\b.*\b8\b", text) for text in told)
    assert sum("before" in text for text in told) == 1
