"""The optimizer that the user holds is the one that trains, as in plain Keras."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from keras import layers

from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import (
    assert_close,
    assert_same,
    fit,
    plain_and_pipelined,
    sequential,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _model() -> Any:
    return sequential(layers.Dense(8, activation="tanh", name="first"))


@pytest.mark.parametrize(
    ("names", "before"),
    [
        exhaustive(["bias"], False),
        (None, True),
        exhaustive(["bias"], True),
        exhaustive(["first"], True),
        exhaustive(["first"], False),
        exhaustive(None, False),
    ],
)
def test_weight_decay_leaves_out_what_it_is_told_to(
    names: list[str] | None, before: bool
) -> None:
    """A built optimizer used to be copied, without what it had been told."""
    results = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(1)
        model, optimizer = _model(), keras.optimizers.AdamW(0.01, weight_decay=0.5)
        variables = None if names else model.layers[-1].weights
        exclude = {"var_list": variables, "var_names": names}
        if before:
            optimizer.exclude_from_weight_decay(**exclude)
            optimizer.build(model.trainable_variables)
        trained: Any = PipelinedModel(model, devices=2) if is_pipelined else model
        if not before:
            optimizer.exclude_from_weight_decay(**exclude)
        trained.compile(optimizer, loss="mse")
        fit(trained, batch_size=3, epochs=2)
        results.append(model.get_weights())
    assert_same(results)


def test_an_optimizer_goes_on_after_the_variables_have_moved() -> None:
    """Its state goes on, and the learning rate that the user sets counts."""
    results = []
    for is_pipelined in (False, True):
        keras.utils.set_random_seed(1)
        trained, optimizer = _model(), keras.optimizers.Adam(0.01)
        trained.compile(optimizer, loss="mse")
        fit(trained, batch_size=3)
        if is_pipelined:
            trained = PipelinedModel(trained, devices=2)
        assert trained.optimizer is optimizer
        optimizer.learning_rate = 0.1
        fit(trained, batch_size=3)
        results.append([*trained.variables, *optimizer.variables])
    assert_same(results)
    last = trained.layers[-1].name
    slots = [v for v in optimizer.variables if last in v.path]
    assert {v.value.device[-5:] for v in slots} == {"CPU:1"}


@pytest.mark.parametrize(
    ("name", "is_built"),
    [
        exhaustive("Adam", None),
        exhaustive("Adam", "before"),
        exhaustive("LossScaleOptimizer", None),
        exhaustive("Adafactor", None),
        ("SGD", "after"),
    ],
)
def test_slots_on_the_host_change_no_byte(name: str, is_built: str | None) -> None:
    """A callback may build an optimizer after `compile`, as BackupAndRestore does."""
    results = []
    for offload_slots in (False, True):
        keras.utils.set_random_seed(1)
        model = _model()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        if name == "LossScaleOptimizer":
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))
        elif name == "Adam":
            optimizer = keras.optimizers.Adam(0.1, gradient_accumulation_steps=2)
        elif name == "Adafactor":
            optimizer = keras.optimizers.Adafactor(0.1)
        if is_built == "before":
            optimizer.build(model.trainable_variables)
        trained = PipelinedModel(model, devices=2, offload_slots=offload_slots)
        trained.compile(optimizer, loss="mse")
        if is_built == "after":
            trained.optimizer.build(trained.trainable_variables)
        fit(trained, batch_size=3, epochs=2)
        results.append([*model.variables, *optimizer.variables])
        slots = {v.value.device[-5:] for v in optimizer.variables if v.shape}
        assert slots == ({"CPU:0"} if offload_slots else {"CPU:0", "CPU:1"})
    assert_same(results)


def test_all_slots_are_with_their_variables() -> None:
    """Adafactor names the moments of rows and columns without a layer's name."""
    model, optimizer = _model(), keras.optimizers.Adafactor(0.1)
    optimizer.build(model.trainable_variables)
    PipelinedModel(model, devices=2).compile(optimizer, loss="mse")
    devices = [v.value.device for v in optimizer.variables if len(v.shape)]
    kernel, bias, last_kernel, last_bias = (
        v.value.device for v in model.trainable_variables
    )
    assert kernel != last_kernel
    assert devices == [*[kernel] * 3, bias, *[last_kernel] * 3, last_bias]


def test_values_other_than_true_and_false_are_refused() -> None:
    options: dict[str, Any] = {"offload_slots": "always"}
    with fails(path="PipelinedModel(offload_slots=...)", got="always"):
        PipelinedModel(_model(), devices=2, **options)


def test_schedule_free_adamw_is_what_keras_runs_eagerly() -> None:
    """Keras's own graph sets its slots to the weights again at each step."""
    if not hasattr(keras.optimizers, "ScheduleFreeAdamW"):
        pytest.skip("This Keras has no ScheduleFreeAdamW.")
    results = []
    for model, trained in plain_and_pipelined(_model, devices=2):
        optimizer = keras.optimizers.ScheduleFreeAdamW(0.05)
        trained.compile(optimizer, loss="mse", run_eagerly=trained is model)
        fit(trained, batch_size=3, epochs=2)
        results.append(model.get_weights())
    assert_close(results)
