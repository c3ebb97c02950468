"""Costs of schemes agree with formulas for equal layers; chains with brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from lingvo_pipe.local_parallelism.blocks import make_blocks
from tools.local_study.costs import (
    BlockCost,
    block_costs,
    sequential_flops,
    total_flops,
)

pytestmark = pytest.mark.exhaustive  # Only developers run the tool.

F, A = 7.0, 2.0  # FLOPs of a layer, and of a head.


@pytest.mark.parametrize("num_layers", [4, 6, 12])
@pytest.mark.parametrize(
    ("scheme", "chunks", "time", "cost"),
    [
        ("greedy", None, lambda n: 3 * (F + A), lambda n: 3 * n * (F + A)),
        (
            "overlapping",
            None,
            lambda n: 3 * (2 * F + A),
            lambda n: 3 * (n - 1) * (2 * F + A),
        ),
        ("chunked", 2, lambda n: 3 * (n * F / 2 + A), lambda n: 3 * (n * F + 2 * A)),
    ],
)
def test_equal_layers_with_a_head_each(scheme, chunks, time, cost, num_layers) -> None:
    blocks = make_blocks(scheme, num_layers, chunks)
    costs = block_costs(blocks, [F] * num_layers, [A] * len(blocks))
    assert total_flops(costs, 5) == 5 * cost(num_layers)
    # Once all blocks run, a step takes as long as one of them.
    more = sequential_flops(costs, 11) - sequential_flops(costs, 10)
    assert more == pytest.approx(time(num_layers))


def test_backpropagation_is_one_chain() -> None:
    costs = block_costs(make_blocks("backpropagation", 6), [F] * 6, [0.0])
    assert total_flops(costs, 2) == 2 * 3 * 6 * F
    assert sequential_flops(costs, 2) == 2 * 3 * 6 * F


def test_no_steps_take_no_time() -> None:
    assert sequential_flops([BlockCost(1.0, 3.0)], 0) == 0.0


@pytest.mark.parametrize("seed", range(20))
def test_sequential_flops_are_the_longest_chain(seed: int) -> None:
    chooser = random.Random(seed)
    num_steps = chooser.randint(1, 6)
    costs = [
        BlockCost(own, 3 * (own + chooser.randint(0, 9)))
        for own in (chooser.randint(1, 9) for _ in range(chooser.randint(1, 5)))
    ]
    # Times at which a block has finished a step, and passed on its outputs.
    ready: dict[tuple[int, int], tuple[float, float]] = {}
    for k, t in itertools.product(range(len(costs)), range(num_steps)):
        own_before = ready[k, t - 1][0] if t else 0
        given = ready[k - 1, t][1] if k else 0
        begin = max(own_before, given)
        ready[k, t] = begin + costs[k].step, begin + costs[k].forward
    expected = max(made for made, _ in ready.values())
    assert sequential_flops(costs, num_steps) == expected


def test_layers_that_are_looked_ahead_to_count_twice() -> None:
    blocks = make_blocks("overlapping", 4)
    costs = block_costs(blocks, [1.0, 10.0, 100.0, 1000.0], [0.5, 0.25, 0.0])
    assert costs == [
        BlockCost(1.0, 3 * 11.5),
        BlockCost(10.0, 3 * 110.25),
        BlockCost(1100.0, 3 * 1100.0),
    ]
