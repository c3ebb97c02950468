"""Axes cover their numbers, and their ticks have distinct labels."""

import math

import numpy as np
import pytest

from lingvo_pipe.training.report.axis import (
    linear_axis,
    log_axis,
    number_text,
    step_axis,
)

PAIRS = [(0.0, 0.0), (88.68, 88.68), (-2e-7, -1e-7), (1e6, 1.0001e6), (1e37, 3e38)]
PAIRS += [tuple(sorted(x)) for x in np.random.default_rng(0).normal(size=[100, 2])]


def number(label):
    return float(label.replace(",", ""))


def check(axis, low, high):
    assert axis.low <= low <= high <= axis.high
    assert 2 <= len(axis.ticks) <= 8
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
    assert sorted(set(axis.ticks)) == list(axis.ticks)
    labels = axis.labels()
    assert list(map(number, labels)) == pytest.approx(axis.ticks)
    assert max(map(len, labels)) <= 12


def test_linear_axes():
    for low, high in PAIRS:
        axis = linear_axis(low, high)
        check(axis, low, high)
        assert (axis.position(axis.low), axis.position(axis.high)) == (0, 1)
        # An axis that does not start at 0 has little empty space.
        if low < high and axis.low != 0:
            assert axis.high - axis.low < 2 * (high - low)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 3e-5, ["0", "1e-5", "2e-5", "3e-5"]),
        (0.17, 0.99, ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        (900.0, 2800.0, ["0", "1,000", "2,000", "3,000"]),
        (0.0, 4e6, ["0", "1e6", "2e6", "3e6", "4e6"]),
    ],
)
def test_labels_of_linear_axes(low, high, labels):
    assert linear_axis(low, high).labels() == labels


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.19, 7.6, ["0.2", "0.5", "1", "2", "5"]),
        (0.9, 130.0, ["1", "3", "10", "30", "100"]),
        (2e-6, 0.5, ["1e-5", "0.0001", "0.001", "0.01", "0.1"]),
    ],
)
def test_log_axes(low, high, labels):
    axis = log_axis(low, high)
    check(axis, low, high)
    assert axis.labels() == labels
    assert axis.position(math.sqrt(low * high)) == pytest.approx(0.5)


def test_log_axes_of_many_powers():
    check(log_axis(1e-30, 1e30), 1e-30, 1e30)


def test_axes_of_steps_are_whole_numbers():
    for last in (1, 2, 3, 7, 10, 60, 539, 1000, 123_456, 10**7):
        axis = step_axis(last)
        check(axis, 0, last)
        assert all(tick.is_integer() for tick in axis.ticks)
        assert axis.high == last
    assert step_axis(0).position(0) == 0


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
