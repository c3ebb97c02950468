"""Warm-up, floor and inverse square root, alone and around other schedules."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.training.optim.keras_optimizer import (
    OptimizerParams,
    ScheduleParams,
    make_optimizer,
    make_rate,
)
from lingvo_pipe.training.optim.rate_schedules import (
    Floor,
    InverseSquareRoot,
    LinearWarmup,
)
from tests.support.errors import fails

RATE = 0.015


def rates(schedule, num_steps):
    return [float(schedule(tf.constant(n, tf.int64))) for n in range(num_steps)]


def amoebanet_schedule(epoch, is_staircase=True):
    """The schedule of tf/tpu, amoeba_net, with `epoch` steps an epoch."""
    decay = ScheduleParams(
        "ExponentialDecay",
        decay_steps=2.4 * epoch,
        decay_rate=0.1,
        staircase=is_staircase,
    )
    warmup = ScheduleParams("LinearWarmup", warmup_steps=3 * epoch, schedule=decay)
    return ScheduleParams("Floor", fraction=1e-4, schedule=warmup)


def amoebanet_rate(step, epoch, is_staircase=True):
    if step < 3 * epoch:
        rate = RATE * step / (3 * epoch)
    else:
        periods = step / (2.4 * epoch)
        rate = RATE * 0.1 ** (math.floor(periods) if is_staircase else periods)
    return max(rate, 1e-4 * RATE)


def test_warm_up_rises_in_a_line_and_stays():
    assert rates(LinearWarmup(0.8, 4), 6) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8])


def test_after_the_warm_up_the_other_schedule_counts_all_steps():
    cosine = keras.optimizers.schedules.CosineDecay(0.8, 10)
    got = rates(LinearWarmup(0.8, 4, cosine), 12)
    assert got[4:] == rates(cosine, 12)[4:]
    assert got[:4] == pytest.approx([0.0, 0.2, 0.4, 0.6])


def test_the_floor_is_a_fraction_of_the_initial_rate():
    halving = keras.optimizers.schedules.ExponentialDecay(0.8, 1, 0.5)
    assert rates(Floor(0.8, 0.25, halving), 5) == pytest.approx([0.8, 0.4] + 3 * [0.2])
    assert rates(Floor(0.8, 0.25), 2) == pytest.approx([0.8, 0.8])


def test_the_inverse_square_root_begins_after_the_constant_steps():
    got = rates(InverseSquareRoot(0.8, 4), 16)
    assert got == pytest.approx([0.8 * min(1, (4 / t) ** 0.5) for t in range(1, 17)])
    assert got[:4] == [np.float32(0.8)] * 4
    assert got[15] == pytest.approx(0.4)


@pytest.mark.parametrize("is_staircase", [True, False])
def test_amoebanets_rate_by_composition(is_staircase):
    params = amoebanet_schedule(5, is_staircase)
    optimizer = make_optimizer(OptimizerParams("SGD"), make_rate(RATE, params))
    variable = tf.Variable(0.0)
    optimizer.build([variable])
    got = []
    for _ in range(70):
        got.append(float(optimizer.learning_rate))
        optimizer.apply([tf.constant(0.0)])
    want = [amoebanet_rate(step, 5, is_staircase) for step in range(70)]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert got[0] == got[-1] == pytest.approx(1e-4 * RATE)


def test_nested_schedules_survive_their_text():
    p, again = ImageClassifier.Params(), ImageClassifier.Params()
    p.train.lr_schedule = amoebanet_schedule(7)
    again.FromText(p.ToText())
    assert again == p
    inner = "train.lr_schedule.arguments['schedule'].arguments['warmup_steps']"
    again.FromText(f"{inner} : 4")
    assert again.train.lr_schedule.arguments["schedule"].arguments["warmup_steps"] == 4


@pytest.mark.parametrize(
    ("make", "path", "value"),
    [
        *((LinearWarmup, "warmup_steps", x) for x in (0, math.inf, math.nan, "3")),
        *((InverseSquareRoot, "constant_steps", x) for x in (-1, True)),
        *((Floor, "fraction", x) for x in (-0.1, 1.1, math.nan, None)),
    ],
)
def test_wrong_arguments_are_named(make, path, value):
    with fails(path=path, got=value):
        make(0.1, value)


@pytest.mark.parametrize(
    ("inner", "path", "got"),
    [
        ("CosineDecay", "", "CosineDecay"),
        (ScheduleParams("CosinDecay"), ".name", "CosinDecay"),
        (ScheduleParams("Floor", fracton=1), ".arguments", ["fracton"]),
        # Schedules that wrap none refuse one.
        (
            ScheduleParams("CosineDecay", decay_steps=2, schedule=ScheduleParams("x")),
            ".arguments",
            ["schedule"],
        ),
    ],
)
def test_errors_of_inner_schedules_are_reported(inner, path, got):
    outer = ScheduleParams("LinearWarmup", warmup_steps=2, schedule=inner)
    inner_path = f"task.train.lr_schedule.arguments['schedule']{path}"
    with fails(path=inner_path, got=got):
        make_rate(0.1, outer)
