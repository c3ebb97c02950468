"""Variables are updated on their devices, by shared functions too, as Keras does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.pipeline.execution.shared_updates import SharedUpdates
from lingvo_pipe.pipeline.execution.updating_in_place import in_place, updating_in_place
from lingvo_pipe.training.optim.keras_optimizer import optimizer_classes
from lingvo_pipe.training.optim.optimizers import RMSpropFromOnes
from tests.support.cases import fast_cases

SHAPES = [[3, 2], [4], [3, 2]]
NUM_LAYERS, NUM_DEVICES = 4, 2
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "RMSpropFromOnes": {"momentum": 0.5, "centered": True},
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
# Updates that differ most: by slots, by a product over steps, and by paths.
UNLIKE = ("Adam", "RMSpropFromOnes", "Nadam", "Muon")
CLASSES = {**vars(keras.optimizers), "RMSpropFromOnes": RMSpropFromOnes}


def make_variables(make: Callable[..., Any] = tf.Variable) -> list[Any]:
    """Returns alike layers, half of them on each of two devices."""
    variables = []
    for i in range(NUM_LAYERS):
        with tf.device(f"CPU:{i * NUM_DEVICES // NUM_LAYERS}"):
            for j, shape in enumerate(SHAPES):
                initial = tf.random.stateless_uniform(shape, seed=[i, j])
                variables.append(make(initial, name=f"layer_{i}_w_{j}"))
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


def assert_same_bytes(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.tobytes() == y.tobytes()


@functools.cache
def trained_in_place(
    name: str, has_host_slots: bool = False
) -> tuple[list[np.ndarray], int, set[str]]:
    """Returns what `trained` does, and the devices of the slots."""
    arguments = {"learning_rate": 0.1, **OPTIMIZERS[name]}
    optimizer = updating_in_place(CLASSES[name])(**arguments)
    optimizer.has_host_slots = has_host_slots
    values, num_calls = trained(lambda: optimizer)
    devices = {slot.value.device[-5:] for slot in optimizer.variables if slot.shape}
    return values, num_calls, devices


@pytest.mark.parametrize("name", fast_cases(OPTIMIZERS, UNLIKE))
def test_the_bytes_are_those_of_keras(name: str) -> None:
    cls, arguments = CLASSES[name], {"learning_rate": 0.1, **OPTIMIZERS[name]}
    expected, _ = trained(lambda: cls(**arguments))
    found, *_ = trained_in_place(name)
    assert_same_bytes(found, expected)


@pytest.mark.parametrize("name", fast_cases(OPTIMIZERS, UNLIKE))
def test_slots_on_the_host_change_no_byte(name: str) -> None:
    """Half of the variables are on another device than their slots then."""
    expected, num_calls, beside = trained_in_place(name)
    values, num_host_calls, on_host = trained_in_place(name, has_host_slots=True)
    assert_same_bytes(values, expected)
    assert num_calls == num_host_calls
    assert (beside, on_host) == ({"CPU:0", "CPU:1"}, {"CPU:0"})


def test_the_host_updates_what_it_has_the_slots_of() -> None:
    optimizer, variables = updating_in_place(keras.optimizers.Adam)(), make_variables()
    optimizer.has_host_slots = True
    optimizer.build(variables)
    function = tf.function(optimizer.apply, autograph=False)
    graph = function.get_concrete_function(gradients_of(0)).graph
    calls = [x for x in graph.get_operations() if x.type == "StatefulPartitionedCall"]
    assert len(calls) == NUM_DEVICES
    assert {x.device[-5:] for x in calls} == {"CPU:0"}


def of_keras(name: str) -> Any:
    """Returns an optimizer of Keras's variables."""
    if name == "LossScaleOptimizer":
        return CLASSES[name](of_keras("Muon"))
    if name == "MultiOptimizer":
        inner = of_keras("Muon"), of_keras("SGD")
        return CLASSES[name](lambda variable: inner[len(variable.shape) > 1])
    arguments = OPTIMIZERS.get(name, {})
    if name == "Muon":  # These layers are found by their variables' paths.
        arguments = {"exclude_layers": ["layer_1"]}
    return CLASSES[name](0.1, **arguments)


def updated_elsewhere(graph: Any) -> list[str]:
    """Returns assignments to arrays of values from other devices than the arrays'."""
    devices = {inner.op.name: outer.device for outer, inner in graph.captures}
    assert len(set(devices.values())) == NUM_DEVICES
    return [
        x.name
        for x in graph.get_operations()
        if x.type.startswith("Assign") and x.inputs[1].shape.rank
        # A read without a device is where the variable is.
        if x.inputs[1].op.type != "ReadVariableOp"
        if x.inputs[1].op.device != devices[x.inputs[0].op.name]
    ]


def trained_by_keras(
    name: str, place: Callable[[Any], Any]
) -> tuple[list[np.ndarray], list[str]]:
    """Returns variables and slots after some steps, and what is updated elsewhere."""
    optimizer, variables = of_keras(name), make_variables(keras.Variable)
    optimizer.build(variables)

    @tf.function(autograph=False)
    def apply(gradients: list[tf.Tensor]) -> None:
        place(optimizer).apply_gradients(zip(gradients, variables, strict=True))

    for step in range(3):
        apply(gradients_of(step))
    graph = apply.get_concrete_function(gradients_of(0)).graph
    values = [x.numpy() for x in [*variables, *optimizer.variables]]
    return values, updated_elsewhere(graph)


@pytest.mark.parametrize(
    "name",
    fast_cases(
        sorted(set(optimizer_classes()) & CLASSES.keys()),
        ["Adam", "Nadam", "LossScaleOptimizer"],  # The last one has a Muon within.
    ),
)
def test_kerass_variables_are_updated_in_place(name: str) -> None:
    """Muon looks at their paths: once it was given TensorFlow's, which have none."""
    expected, _ = trained_by_keras(name, lambda optimizer: optimizer)
    found, elsewhere = trained_by_keras(name, in_place)
    assert_same_bytes(found, expected)
    if name != "Adafactor":  # Keras creates its rows and columns on any device.
        assert elsewhere == []

    def on_hosts(optimizer: Any) -> Any:
        optimizer.has_host_slots = True
        return in_place(optimizer)

    updated_on_hosts, elsewhere = trained_by_keras(name, on_hosts)
    assert_same_bytes(updated_on_hosts, expected)
    if name != "LossScaleOptimizer":  # It updates in a branch, a graph of its own.
        assert elsewhere


def test_copies_in_place_have_one_class() -> None:
    optimizer = keras.optimizers.SGD()
    assert type(in_place(optimizer)) is type(in_place(optimizer))


def test_a_variable_adds_no_node_to_the_graph() -> None:
    """The update of 1,024 layers was a graph of 100,000 nodes, built in minutes."""
    _, plain = trained(lambda: keras.optimizers.Adam(0.1), 0)
    _, shared = trained(lambda: updating_in_place(keras.optimizers.Adam)(0.1), 0)
    assert shared < NUM_LAYERS * len(SHAPES) < plain / 10


@pytest.mark.parametrize(
    "name",
    fast_cases(OPTIMIZERS, ["RMSpropFromOnes"]),
)
def test_accumulated_gradients_are_those_of_keras(name: str) -> None:
    arguments = {"learning_rate": 0.1, "gradient_accumulation_steps": 2}
    cls, arguments = CLASSES[name], {**arguments, **OPTIMIZERS[name]}
    expected, _ = trained(lambda: cls(**arguments), 4)
    found, _ = trained(lambda: updating_in_place(cls)(**arguments), 4)
    assert_same_bytes(found, expected)


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
