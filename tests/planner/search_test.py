"""The search finds what looking at every candidate finds."""

from __future__ import annotations

import pytest

from lingvo_pipe.planner.evaluation import Evaluated, evaluate
from lingvo_pipe.planner.least_seconds import least_seconds
from lingvo_pipe.planner.search import search
from lingvo_pipe.planner.too_large import TooLarge
from tests.planner.made_up_model import (
    BATCH_SIZE,
    NUM_CELLS,
    every_candidate,
    made_up_device,
    made_up_model,
    made_up_models,
)

EVERYTHING = made_up_model(BATCH_SIZE).memory.weights(0, NUM_CELLS) * 4


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8, 1.2, 9.0])
def test_it_finds_the_fastest_that_fit(share: float) -> None:
    device = made_up_device(int(EVERYTHING * share))
    models, choices = made_up_models(device), every_candidate()
    every = [
        evaluate(each, *models(BATCH_SIZE // each.num_micro_batches), device)
        for each in choices
    ]
    fitting = [each for each in every if isinstance(each, Evaluated)]
    for each in fitting:
        assert max(each.bytes_by_device) <= device.usable
        assert [0, *each.ends] == sorted({0, *each.ends})
        assert each.ends[-1] == NUM_CELLS
        assert len(each.ends) == each.candidate.num_stages
        _, cells = models(BATCH_SIZE // each.candidate.num_micro_batches)
        least = least_seconds(each.candidate, cells, device.operation_seconds)
        assert least <= each.step_seconds * (1 + 1e-9)  # Sums are rounded.
    others = [each for each in every if isinstance(each, TooLarge)]
    assert all(each.needed > device.usable for each in others)

    found = search(choices, models, device, BATCH_SIZE)
    want: dict[tuple[str, str], float] = {}
    for each in fitting:
        way = each.candidate.way
        want[way] = min(each.step_seconds, want.get(way, each.step_seconds))
    assert {x.candidate.way: x.step_seconds for x in found.fastest} == want
    seconds = [each.step_seconds for each in found.fastest]
    assert seconds == sorted(seconds)
    too_large = {each.candidate for each in others}
    assert {each.candidate for each in found.too_large} <= too_large
    looked_at = len(found.fastest) + found.num_slower + len(found.too_large)
    assert looked_at == len(choices)


def test_limits_matter() -> None:
    """Of the limits above some allow all candidates, and some but a few."""
    numbers = []
    for share in (0.3, 0.6, 0.8, 1.2, 9.0):
        device = made_up_device(int(EVERYTHING * share))
        models, choices = made_up_models(device), every_candidate()
        results = [
            evaluate(each, *models(BATCH_SIZE // each.num_micro_batches), device)
            for each in choices
        ]
        numbers.append(sum(isinstance(each, Evaluated) for each in results))
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == len(every_candidate())
