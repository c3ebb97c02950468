"""A Keras model is planned, and runs as the plan says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import lingvo_pipe as lp
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.tools.plan.keras_plan import keras_params
from lingvo_pipe.tools.plan.plan import main
from tests.support.errors import fails

_LENGTH, _WIDTH, _ROWS = 5, 4, 8
_DEVICES = "2x80GB@1TFLOPS"
_MODULE = """
import keras
from keras import layers

def make_model():
    x = keras.Input((None, 4))
    return keras.Model(x, layers.Dense(2)(layers.Dense(4)(x)))
"""


def named_inputs() -> keras.Model:
    """Returns a model of open length, with a frozen layer, a mask and two outputs."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    scales = keras.Input((1,), name="scales")
    x = layers.Embedding(9, _WIDTH, mask_zero=True)(ids)
    x = layers.LSTM(_WIDTH)(layers.Dense(_WIDTH, trainable=False)(x))
    x = layers.Multiply()([x, scales])
    outputs = layers.Dense(2)(x), layers.Dense(1)(x)
    model = keras.Model({"ids": ids, "scales": scales}, outputs)
    return model


def test_the_model_runs_as_planned() -> None:
    plan = lp.plan(named_inputs, _DEVICES, _ROWS, length=_LENGTH, num_stages=2)
    model = named_inputs()
    trained = sum(np.prod(v.shape) for v in model.trainable_variables)
    assert f"named_inputs: 5 cells, {trained:,} parameters" in str(plan)
    names: dict[str, Any] = {"lp": lp, "model": model}
    exec(str(plan).partition("To run the first:")[2], names)
    pipelined: Any = names["model"]
    pipelined.compile("sgd", loss=["mse", "mse"])
    assert isinstance(pipelined, lp.keras.PipelinedModel)
    assert pipelined.pipeline.num_stages == 2 * plan.rows[0]["stages_per_device"]
    x = {"ids": np.ones((_ROWS, _LENGTH)), "scales": np.ones((_ROWS, 1))}
    targets = [np.ones((_ROWS, 2)), np.ones((_ROWS, 1))]
    losses = pipelined.fit(x, targets, batch_size=_ROWS, verbose=0).history["loss"]
    assert np.isfinite(losses).all()


def with_two_layers() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), *[layers.Dense(64) for _ in "ab"]])


def with_sgd() -> keras.Model:
    """Returns the same model, compiled with an optimizer that has no slots."""
    model = named_inputs()
    model.compile("sgd", loss=["mse", "mse"])
    return model


def _compiled(optimizer: Any, **options: Any) -> keras.Model:
    x = keras.Input((64,))
    model = keras.Model(x, layers.Dense(64, **options)(x))
    model.compile(optimizer, loss="mse")
    return model


def with_momentum() -> keras.Model:
    return _compiled(keras.optimizers.SGD(0.1, momentum=0.9))


def with_largest_moments() -> keras.Model:
    return _compiled(keras.optimizers.Adam(0.1, amsgrad=True))


def with_averages() -> keras.Model:
    """Returns a model with moving averages of its own, of which Keras makes none."""
    x = keras.Input((64,))
    model = keras.Model(x, layers.BatchNormalization()(layers.Dense(64)(x)))
    optimizer = keras.optimizers.RMSprop(0.1, centered=True, use_ema=True)
    model.compile(optimizer, loss="mse")
    return model


def with_adafactor() -> keras.Model:
    return _compiled(keras.optimizers.Adafactor(0.1))


def of_half_precision() -> keras.Model:
    """Returns a model that only PipelinedModel trains."""
    options = {"kernel_constraint": "non_neg", "dtype": "mixed_float16"}
    return _compiled("adam", **options)


@pytest.mark.parametrize(
    "make",
    [
        with_momentum,
        with_largest_moments,
        with_averages,
        with_adafactor,
        of_half_precision,
    ],
)
def test_slots_are_those_of_the_models_optimizer(
    make: Callable[[], keras.Model],
) -> None:
    params = keras_params(make, _ROWS, None)
    tracer = ModelTracer(params.task, params.input.Instantiate().element_spec)
    dtype = "float16" if make is of_half_precision else "float32"
    assert tracer.fprop_dtype == dtype
    costs = tracer.trace(2, counts_flops=False).costs
    model = make()
    model.optimizer.build(model.trainable_variables)
    sizes = [np.prod(v.shape) for v in model.optimizer.variables if v.shape]
    assert sum(costs.slot_bytes) == pytest.approx(4 * sum(sizes), rel=0.05)


class _Momentum(keras.optimizers.SGD):
    """An optimizer that may have any slots."""


def with_another_optimizer() -> keras.Model:
    return _compiled(_Momentum(0.1))


def test_what_cannot_be_planned_is_refused() -> None:
    with fails(path="compile(optimizer=...)"):
        lp.plan(with_another_optimizer, _DEVICES, _ROWS)
    with fails(path="length", got=3):
        lp.plan(with_momentum, _DEVICES, _ROWS, length=3)
    with fails(path="devices"):
        lp.plan(with_momentum, "2x2xV100", _ROWS)


def test_the_call_names_devices_and_places_slots() -> None:
    change: Any = {"task.train.offload_slots": True}
    settings: Any = {"num_stages": 2, "num_replicas": 2}
    kinds = "2x80GB@300TFLOPS,2x16GB@60TFLOPS"
    plan = lp.plan(with_two_layers, kinds, _ROWS, **settings, **change)
    call = str(plan).partition("To run the first:")[2]
    assert "devices=['gpu:0', 'gpu:2', 'gpu:1', 'gpu:3']" in call
    assert "offload_slots=True" in call


@pytest.mark.exhaustive
def test_the_slots_of_a_compiled_model_are_counted() -> None:
    """Adam's, if it is not compiled, or a change names Adam."""
    change: Any = {"task.train.optimizer": lp.OptimizerParams("Adam")}
    sgd, adam, changed = (
        lp.plan(make, "80GB@1TFLOPS", _ROWS, length=_LENGTH, **more).rows[0]["bytes"]
        for make, more in ((with_sgd, {}), (named_inputs, {}), (with_sgd, change))
    )
    assert sgd < adam == changed


def test_the_command_plans_a_function_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "planned_keras.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    keras_flag = "--keras=planned_keras:make_model"
    sizes = ["--batch=8", f"--length={_LENGTH}"]
    devices = f"--devices={_DEVICES}"
    assert main([keras_flag, devices, *sizes]) == 0
    assert "model = lp.keras.PipelinedModel(" in capsys.readouterr().out
    for arguments, path in (
        ([keras_flag, sizes[0]], "--length"),
        ([keras_flag, sizes[1]], "--batch"),
        (["--keras=planned_keras:model", *sizes], "--keras"),
        (["--keras=planned_keras", *sizes], "--keras"),
        (["--keras=no_such_module:make_model", *sizes], "--keras"),
        (["--keras=planned_keras.py:make_model", *sizes], "--keras"),
        (["--keras=.planned_keras:make_model", *sizes], "--keras"),
    ):
        with pytest.raises(SystemExit, match=f"^error: {path}: expected "):
            main([*arguments, devices])


def test_a_registered_model_has_lengths_of_its_own() -> None:
    with fails(path="length", got=7):
        lp.plan("lm.text.TransformerTiny", _DEVICES, length=7)
