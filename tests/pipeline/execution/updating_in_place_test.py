"""Shared functions update alike variables as Keras updates each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.execution.shared_updates import SharedUpdates
from lingvo_pipe.pipeline.execution.updating_in_place import updating_in_place

SHAPES = [[3, 2], [4], [3, 2]]
NUM_LAYERS, NUM_DEVICES = 4, 2
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "Adadelta": {},
    "Adagrad": {},
    "Adamax": {},
    "Nadam": {},  # Has a product over steps, which all variables share.
    "Ftrl": {},
    "Lion": {},
    "Lamb": {},
    "Muon": {"exclude_embeddings": False},  # Has other slots for vectors.
}


def make_variables() -> list[tf.Variable]:
    """Returns alike layers, half of them on each of two devices."""
    variables = []
    for i in range(NUM_LAYERS):
        with tf.device(f"CPU:{i * NUM_DEVICES // NUM_LAYERS}"):
            for j, shape in enumerate(SHAPES):
                initial = tf.random.stateless_uniform(shape, seed=[i, j])
                variables.append(tf.Variable(initial, name=f"layer_{i}/w_{j}"))
    return variables


def gradients_of(step: int) -> list[tf.Tensor]:
    return [
        tf.random.stateless_normal(shape, seed=[step, 10 * i + j])
        for i in range(NUM_LAYERS)
        for j, shape in enumerate(SHAPES)
    ]


def trained(
    make: Callable[[], keras.optimizers.Optimizer], num_steps: int = 3
) -> tuple[list[np.ndarray], int]:
    """Returns the variables and slots after some steps, and a step's nodes."""
    optimizer, variables = make(), make_variables()
    optimizer.build(variables)
    function = tf.function(optimizer.apply, autograph=False)
    for step in range(num_steps):
        function(gradients_of(step))
    graph = function.get_concrete_function(gradients_of(0)).graph
    calls = [x for x in graph.get_operations() if x.type != "Placeholder"]
    return [x.numpy() for x in [*variables, *optimizer.variables]], len(calls)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bytes_are_those_of_keras(name: str) -> None:
    cls = getattr(keras.optimizers, name)
    arguments = {"learning_rate": 0.1, **OPTIMIZERS[name]}
    expected, _ = trained(lambda: cls(**arguments))
    found, _ = trained(lambda: updating_in_place(cls)(**arguments))
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.tobytes() == y.tobytes()


def test_a_variable_adds_no_node_to_the_graph() -> None:
    """The update of 1,024 layers was a graph of 100,000 nodes, built in minutes."""
    _, plain = trained(lambda: keras.optimizers.Adam(0.1))
    _, shared = trained(lambda: updating_in_place(keras.optimizers.Adam)(0.1))
    assert shared < NUM_LAYERS * len(SHAPES) < plain / 10


def test_accumulated_gradients_are_those_of_keras() -> None:
    arguments = {"learning_rate": 0.1, "gradient_accumulation_steps": 2}
    expected, _ = trained(lambda: keras.optimizers.Adam(**arguments), 4)
    cls = updating_in_place(keras.optimizers.Adam)
    found, _ = trained(lambda: cls(**arguments), 4)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_function_is_traced_once_for_alike_variables() -> None:
    traced, shared = [], SharedUpdates()
    common = tf.Variable(10.0)

    def update(tensors: list[tf.Tensor], own: list[tf.Variable]) -> list[tf.Tensor]:
        traced.append(own)
        own[0].assign_add(tensors[0] * common * own[1])
        return [own[0].read_value()]

    pairs = [[tf.Variable(float(i)), tf.Variable(2.0**i)] for i in range(3)]

    @tf.function(autograph=False)
    def run(x: tf.Tensor) -> list[tf.Tensor]:
        return [shared.call("add", update, [x], pair)[0] for pair in pairs]

    assert [float(x) for x in run(tf.constant(1.0))] == [10.0, 21.0, 42.0]
    assert [float(pair[0]) for pair in pairs] == [10.0, 21.0, 42.0]
    assert len(traced) == 1


def test_a_tied_variable_does_not_stand_for_two() -> None:
    """Shapes alone say nothing of it: the second pair would be one variable twice."""
    tied, left, right = (tf.Variable(x) for x in (1.0, 2.0, 3.0))
    shared = SharedUpdates()

    def total(_: list[tf.Tensor], own: list[tf.Variable]) -> list[tf.Tensor]:
        return [own[0] + 10.0 * own[1]]

    @tf.function(autograph=False)
    def run() -> list[tf.Tensor]:
        pairs = [tied, tied], [left, right], [right, left]
        return [shared.call("total", total, [], pair)[0] for pair in pairs]

    assert [float(x) for x in run()] == [11.0, 32.0, 23.0]
