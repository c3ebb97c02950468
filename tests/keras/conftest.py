"""Frees the graphs of exhaustive tests, and looks for what tests leave in Keras."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import keras
import pytest
from tensorflow.python.framework import ops


@pytest.fixture(autouse=True)
def _no_graphs_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drops custom gradients after the test: TensorFlow's registry never does.

    Each of them holds the graph that it was traced in.
    """
    yield
    if request.node.get_closest_marker("exhaustive"):
        registry = ops.gradient_registry._registry
        for name in [x for x in registry if x.startswith("CustomGradient")]:
            del registry[name]
        gc.collect()


@pytest.fixture(autouse=True)
def _names_are_as_before() -> Iterator[None]:
    """Looks whether a scope of names was left open: models' paths would begin with it.

    A layer whose class has a private name was once called outside of any scope.
    """
    yield
    assert keras.Variable(0.0, name="x").path == "x"
    assert keras.Variable(0.0).dtype == "float32"


@pytest.fixture
def floats_of_64_bits() -> Iterator[None]:
    """Makes float64 Keras's dtype."""
    keras.config.set_dtype_policy("float64")
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
