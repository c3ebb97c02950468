"""Losses of micro-batches, put together by their weights, are the mini-batch's."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

from lingvo_pipe.keras.cells.private_names import flat_losses
from lingvo_pipe.keras.loss import divisors_of, mean_and_weight
from tests.support.cases import exhaustive

REDUCTIONS = ("sum_over_batch_size", "mean_with_sample_weight", "sum")
B, PARTS = 5, (slice(0, 2), slice(2, 5))
RANDOM = np.random.default_rng(0)


def _compiled(reductions: tuple[str, ...], weights: Any, y: Any, outputs: Any) -> Any:
    """Returns what Keras compiles of a loss with each reduction, by output."""
    x = keras.Input((3,))
    model = keras.Model(x, [keras.layers.Dense(2)(x) for _ in reductions])
    losses = [keras.losses.MeanSquaredError(reduction=r) for r in reductions]
    model.compile("sgd", loss=losses, loss_weights=[2.0, *[0.5] * (len(losses) - 1)])
    model._compile_loss(y, outputs, weights)
    assert len(flat_losses(model._compile_loss)) == len(reductions)
    return model._compile_loss


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize(
    "reductions",
    [
        *itertools.product(REDUCTIONS, repeat=1),
        *itertools.combinations_with_replacement(REDUCTIONS, 2),
        *map(exhaustive, itertools.combinations(REDUCTIONS[::-1], 2)),
    ],
    ids=str,
)
def test_they_are_the_mini_batchs(
    reductions: tuple[str, ...], is_masked: bool, is_weighted: bool
) -> None:
    def numbers(*shape: int) -> list[np.ndarray]:
        return [RANDOM.uniform(0.1, 1, shape).astype("float32") for _ in reductions]

    def masked(arrays: Any) -> Any:
        return [keras.layers.Masking()(x) for x in arrays] if is_masked else arrays

    rows = (B, 3) if is_masked else (B,)
    y, outputs = numbers(*rows, 2), numbers(*rows, 2)
    if is_masked:
        for x in outputs:
            x[[0, 3], 1:] = 0.0
    weights = numbers(*rows) if is_weighted else None
    compiled = _compiled(reductions, weights, y, masked(outputs))
    divisors = None
    if len(reductions) > 1:
        divisors = divisors_of(compiled, y, masked(outputs), weights)
    total = parts = 0.0
    for part in PARTS:
        targets, values, sample_weights = (
            x and [array[part] for array in x] for x in (y, outputs, weights)
        )
        data: Any = targets, masked(values), sample_weights
        number = np.float32(part.stop - part.start)
        mean, weight = mean_and_weight(compiled, data, number, B, divisors)
        total, parts = total + float(mean) * float(weight), parts + float(weight)
    expected = float(compiled(y, masked(outputs), weights))
    assert total / parts == pytest.approx(expected, rel=1e-5)


@pytest.mark.usefixtures("floats_of_64_bits")
def test_weights_round_no_digit_of_64_bits() -> None:
    """They were numbers of 32 bits."""
    y, outputs = ([RANDOM.uniform(0.1, 1, (B, 2))] for _ in range(2))
    compiled = _compiled(REDUCTIONS[:1], None, y, outputs)
    total = 0.0
    for part in PARTS:
        data: Any = [y[0][part]], [outputs[0][part]], None
        mean, weight = mean_and_weight(compiled, data, part.stop - part.start, B)
        total += float(mean) * float(weight)
    expected = float(compiled(y, outputs, None))
    assert total == pytest.approx(expected, rel=1e-14)
