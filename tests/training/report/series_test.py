"""Series: what was logged, by metric and split."""

import math

import numpy as np
import pytest

from lingvo_pipe.training.report.series import (
    Report,
    Series,
    number_text,
    series_by_metric,
)


def series(values, metric="loss"):
    return Series(metric, "train", tuple(Report(*x) for x in enumerate(values, 1)))


def test_records_are_sorted_by_metric_split_and_step():
    records = [
        {"step": 20, "split": "train", "loss": 2.0},
        {"step": 10, "split": "train", "loss": 3.0, "accuracy": 0.5},
        {"step": 20, "split": "test", "loss": 1.0},
        {"step": 20, "split": "test", "loss": 1.5},
    ]
    assert series_by_metric(records) == {
        "loss": [
            Series("loss", "train", (Report(10, 3.0), Report(20, 2.0))),
            Series("loss", "test", (Report(20, 1.5),)),
        ],
        "accuracy": [Series("accuracy", "train", (Report(10, 0.5),))],
    }
    (of_evaler,) = series_by_metric(records[2:], "evaler")["loss"]
    assert of_evaler.split == "test, evaler"


@pytest.mark.parametrize(
    ("metric", "best_metric", "step"),
    [
        ("loss", None, 3),
        ("auxiliary_loss", None, 3),
        ("log_pplx", "accuracy", 3),
        ("accuracy", None, 2),
        ("bleu", None, 2),
        ("mine", "mine", 2),
        ("mine", "-mine", 3),
        ("accuracy", "-accuracy", 3),
    ],
)
def test_the_best_is_the_least_or_the_largest(metric, best_metric, step):
    values = [2.0, 7.0, 1.0, math.nan, 1.0, 7.0]
    assert series(values, metric).best(best_metric).step == step


@pytest.mark.parametrize(
    ("metric", "values"), [("learning_rate", [1.0]), ("loss", [math.nan, math.inf])]
)
def test_there_may_be_no_best(metric, values):
    assert series(values, metric).best() is None


def test_what_is_no_number_parts_the_curve():
    points = series([math.nan, 1.0, 2.0, math.inf, -math.inf, 3.0]).points()
    finite = [point.step for point in points if math.isfinite(point.value)]
    assert (len(points), finite) == (6, [2, 3, 6])


@pytest.mark.parametrize("num", [200, 201, 4321])
def test_long_curves_have_fewer_points(num):
    values = np.random.default_rng(num).normal(size=num)
    long = series(values)
    points = long.points()
    n = long.reports_per_point
    assert len(points) == math.ceil(num / n) <= 200
    for i, point in enumerate(points):
        here = values[i * n : (i + 1) * n]
        assert point[1:] == pytest.approx((here.mean(), here.min(), here.max()))
    assert points[-1].step == num


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.0, "1,234"),
        (0.99443, "0.9944"),
        (6.001e-5, "6.001e-5"),
        (1.5e38, "1.5e38"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_written_shortly(value, text):
    assert number_text(value) == text
