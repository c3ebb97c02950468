"""Schedules as classes have the values of their formulas, and scale the rate."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe import py_utils, schedule
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.training.optim.keras_optimizer import ScheduleParams
from lingvo_pipe.training.optim.learner import Learner, define_learner_params
from tests.support.errors import fails

HALVES = schedule.StepwiseExponentialSchedule.Params().Set(
    decay=0.5, num_steps_per_decay=2
)


def values(params, steps):
    made = params.Instantiate()
    return [float(made.ValueAt(tf.constant(x, tf.int64))) for x in steps]


def between(x, start, limit):
    """The share of the way from one step to another."""
    return min(max((x - start) / (limit - start), 0.0), 1.0)


FORMULAS: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "Constant": ({"value": 0.3}, lambda x: 0.3),
    "ConstantOne": ({}, lambda x: 1.0),
    "LinearSchedule": (
        {"start": (2, 0.5), "limit": (8, 2.0)},
        lambda x: 0.5 + 1.5 * between(x, 2, 8),
    ),
    "PolynomialSchedule": (
        {"start": (2, 0.5), "limit": (8, 2.0), "power": 3, "origin": "limit"},
        lambda x: 0.5 + 1.5 * (1 - (1 - between(x, 2, 8)) ** 3),
    ),
    "ExponentialSchedule": (
        {"start": (2, 4.0), "limit": (8, 0.5)},
        lambda x: 4.0 * 0.125 ** between(x, 2, 8),
    ),
    "ContinuousSchedule": (
        {"initial_value": 3.0, "start_step": 2, "half_life_steps": 3, "min": 0.2},
        lambda x: 3.0 * max(0.5 ** (max(x - 2, 0) / 3), 0.2),
    ),
    "StepwiseExponentialSchedule": (
        {"decay": 0.7, "num_steps_per_decay": 3},
        lambda x: 0.7 ** (x // 3),
    ),
    "AnnealingSchedule": (
        {"factor": 0.8, "lower_bound": 0.3},
        lambda x: max(0.8**x, 0.3),
    ),
    "CosineSchedule": (
        {"initial_value": 3.0, "final_value": 1.0, "total_steps": 9},
        lambda x: 2.0 + math.cos(math.pi * min(x / 9, 1)),
    ),
    "SqrtDecay": (
        {"warmup_steps": 4, "multiplier": 3.0, "offset": 1.0},
        lambda x: 3.0 * max(x - 1, 4) ** -0.5,
    ),
    "TransformerSchedule": (
        {"warmup_steps": 2, "model_dim": 16, "worker_replicas": 2, "decay_end": 7},
        lambda x: 0.25 * min((min(x, 7) + 1) * 4**-1.5, (min(x, 7) + 1) ** -0.5),
    ),
    "PiecewiseConstantSchedule": (
        {"boundaries": [3, 7], "values": [1.0, 0.1, 0.01]},
        lambda x: [1.0, 0.1, 0.01][(x >= 3) + (x >= 7)],
    ),
    "LinearRampupExponentialDecay": (
        {"warmup": 3, "decay_start": 5, "decay_end": 9, "min": 0.1},
        lambda x: min(x / 3, 0.1 ** between(x, 5, 9)),
    ),
    "LinearRampupExponentialDecayScaledByNumSplitSchedule": (
        {
            "warmup": 2,
            "decay_start": 12,
            "decay_end": 20,
            "min": 0.1,
            "max": 1.7,
            "num_splits": 2,
        },
        lambda x: min(1 + min(x, 4) / 4, 2.0 * 0.05 ** between(x, 6, 10), 1.7),
    ),
    "LinearRampupPiecewiseConstantSchedule": (
        {"boundaries": [4, 8, 12], "lrs": [1.0, 0.5, 0.1], "num_splits": 2},
        lambda x: x if x < 2 else [2.0, 1.0, 0.2][(x >= 4) + (x >= 6)],
    ),
    "LinearRampupCosineSchedule": (
        {"warmup_init": 0.5, "warmup_steps": 3, "initial_value": 2.0, "total_steps": 9},
        lambda x: min(0.5 + 0.5 * min(x, 3), 1.0 + math.cos(math.pi * min(x / 9, 1))),
    ),
    "CombinedMinimumSchedule": (
        {"schedules": [HALVES, schedule.Constant.Params().Set(value=0.4)]},
        lambda x: min(0.5 ** (x // 2), 0.4),
    ),
    "PiecewiseSchedule": (
        {"boundaries": [3], "schedules": [HALVES, HALVES.Copy().Set(decay=0.1)]},
        lambda x: 0.5 ** (x // 2) if x < 3 else 0.1 ** ((x - 3) // 2),
    ),
    "CycleSchedule": (
        {"steps": [4, 1], "schedules": [HALVES, schedule.Constant.Params()]},
        lambda x: 0.5 ** (x // 2) if x % 5 < 4 else 1.0,
    ),
}


def test_each_schedule_has_a_formula():
    classes = [x for x in vars(schedule).values() if isinstance(x, type)]
    names = {x.__name__ for x in classes if issubclass(x, schedule.BaseSchedule)}
    assert set(FORMULAS) == names - {"BaseSchedule", "DevBasedSchedule", "_Composite"}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_are_those_of_the_formula(name):
    arguments, formula = FORMULAS[name]
    params = getattr(schedule, name).Params().Set(**arguments)
    want = [formula(x) for x in range(13)]
    np.testing.assert_allclose(values(params, range(13)), want, rtol=3e-6)


@pytest.mark.parametrize(
    "cls",
    [schedule.CombinedMinimumSchedule, schedule.LinearRampupPiecewiseConstantSchedule],
)
def test_params_share_no_default(cls):
    """Once a change of a default list was one of all later params."""
    text = cls.Params().ToText()
    for _, value in cls.Params().IterParams():
        if isinstance(value, list):
            value.append(HALVES.Copy())
            value[0].name = "changed"
    assert cls.Params().ToText() == text


def learner_params(**changes):
    p = Params()
    define_learner_params(p)
    return p.Set(learning_rate=0.1).Set(**changes)


class OneOverStep(schedule.BaseSchedule):
    """A schedule of one's own."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define("offset", 1, "")
        return p

    def Value(self):
        return 1 / (py_utils.GetGlobalStep() + self.params.offset)


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_learner_multiplies_its_rate_by_the_value(in_graph):
    variable = tf.Variable(0.0)
    p = learner_params(lr_schedule=OneOverStep.Params().Set(offset=2))
    learner = Learner(p, {"w": variable})
    apply = tf.function(learner.Apply, autograph=False) if in_graph else learner.Apply
    want = 0.0
    for step in range(4):
        assert float(learner.learning_rate) == pytest.approx(0.1 / (step + 2))
        apply({"w": tf.constant(1.0)})
        want -= 0.1 / (step + 2)
        assert float(variable) == pytest.approx(want)


def test_nested_schedules_get_the_step_as_an_integer():
    class Step(schedule.BaseSchedule):
        def Value(self):
            assert py_utils.GetGlobalStep().dtype == tf.int64
            return py_utils.GetGlobalStep() // 2

    p = schedule.PiecewiseSchedule.Params()
    p.Set(boundaries=[3], schedules=[Step.Params(), Step.Params()])
    assert values(p, range(6)) == [0, 0, 1, 0, 0, 1]
    assert float(p.Instantiate().ValueAt(4)) == 0


def test_an_integer_may_be_the_factor_of_a_decay():
    p = schedule.StepwiseExponentialSchedule.Params()
    assert values(p.Set(decay=2, num_steps_per_decay=3), [2, 3, 6]) == [1, 2, 4]


def test_schedules_of_both_kinds_nest():
    inner = schedule.PiecewiseSchedule.Params().Set(
        boundaries=[4], schedules=[schedule.DevBasedSchedule.Params(), HALVES]
    )
    p = ScheduleParams("LinearWarmup", warmup_steps=2, schedule=inner)
    learner = Learner(learner_params(lr_schedule=p), {"w": tf.Variable(0.0)})
    (dev_based,) = learner.DevBasedSchedules()
    dev_based.FollowEvaluations([{"step": 10_000, "loss": float("nan")}])
    rates = []
    for _ in range(7):
        rates.append(float(learner.learning_rate))
        learner.Apply({"w": tf.constant(0.0)})
    assert rates == pytest.approx([0.0, 0.05, 0.05, 0.05, 0.1, 0.1, 0.05])


def test_a_layer_is_no_schedule():
    p = learner_params(lr_schedule=FCLayer.Params())
    with fails(path="task.train.lr_schedule", got="FCLayer"):
        Learner(p, {"w": tf.Variable(0.0)})


def test_schedules_survive_their_text():
    arguments, _ = FORMULAS["PiecewiseSchedule"]
    p = learner_params(lr_schedule=schedule.PiecewiseSchedule.Params().Set(**arguments))
    again = learner_params()
    again.FromText(p.ToText())
    assert again == p
    again.FromText("lr_schedule.schedules[1].decay : 0.25")
    assert values(again.lr_schedule, [5]) == [0.25]


def test_keras_changes_a_piece_one_step_later():
    p = schedule.PiecewiseConstantSchedule.Params()
    ours = values(p.Set(boundaries=[3], values=[1.0, 0.5]), range(6))
    theirs = keras.optimizers.schedules.PiecewiseConstantDecay([3], [1.0, 0.5])
    assert ours[1:] == [float(theirs(x)) for x in range(1, 6)][1:] + [0.5]


def test_the_transformers_warm_up_is_one_step_ahead_of_linear_warmup():
    p = schedule.TransformerSchedule.Params().Set(warmup_steps=5, model_dim=1)
    variables = {"w": tf.Variable(0.0)}
    after = ScheduleParams("InverseSquareRoot", constant_steps=5)
    warm = ScheduleParams("LinearWarmup", warmup_steps=5, schedule=after)
    learner = Learner(
        learner_params(learning_rate=5**-0.5, lr_schedule=warm), variables
    )
    got = []
    for _ in range(6):
        got.append(float(learner.learning_rate))
        learner.Apply({"w": tf.constant(0.0)})
    assert got[0] == 0.0
    assert got[1:5] == pytest.approx(values(p, range(4)))
    assert got[5] == pytest.approx(values(p, [5])[0])


@pytest.mark.parametrize(
    ("name", "arguments", "path"),
    [
        ("LinearSchedule", {"start": (3, 1.0), "limit": (3, 0.5)}, "limit"),
        ("PolynomialSchedule", {"origin": "strat"}, "origin"),
        ("ExponentialSchedule", {"limit": (1, 0.0)}, "limit"),
        ("AnnealingSchedule", {"lower_bound": 0.1, "factor": 0.5, "init": 2}, "init"),
        ("CosineSchedule", {}, "total_steps"),
        ("PiecewiseConstantSchedule", {"values": [1.0]}, "boundaries"),
        ("PiecewiseConstantSchedule", {"boundaries": [3, 1]}, "boundaries"),
        ("PiecewiseConstantSchedule", {"boundaries": [3], "values": [1.0]}, "values"),
        ("CycleSchedule", {"schedules": [HALVES], "steps": [1, 2]}, "schedules"),
        ("CycleSchedule", {"schedules": [HALVES], "steps": [0]}, "steps"),
        ("LinearRampupPiecewiseConstantSchedule", {}, "num_splits"),
        ("LinearRampupExponentialDecayScaledByNumSplitSchedule", {}, "num_splits"),
    ],
)
def test_wrong_params_are_named(name, arguments, path):
    with fails() as info:
        getattr(schedule, name).Params().Set(**arguments).Instantiate()
    assert str(info.value).startswith(f"LRSched.{path}: ")


def test_a_schedule_without_a_value_is_named():
    with ForwardContext(step=0), pytest.raises(NotImplementedError, match="Value"):
        schedule.BaseSchedule.Params().Instantiate().Value()
