"""Fixtures that several folders of tests use."""

import logging

import pytest
import tensorflow as tf


@pytest.fixture
def warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Captures the warnings of TensorFlow's logger."""
    logger = tf.get_logger()
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.WARNING, logger.name)
    return caplog
