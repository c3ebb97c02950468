"""How long the update of the weights takes, device by device."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from lingvo_pipe.pipeline.homes import homes_in_turn
from lingvo_pipe.planner.candidate import Candidate
from lingvo_pipe.planner.update_seconds import update_seconds
from tests.planner.made_up_model import (
    NUM_CELLS,
    every_candidate,
    made_up_device,
    made_up_model,
    schedule_of,
)

DEVICE = made_up_device(10**6)
MODEL = made_up_model(1)


def seconds_of(candidate: Candidate, ends: list[int]) -> float:
    schedule = schedule_of(candidate)
    return update_seconds(MODEL, schedule, ends, candidate.num_replicas, DEVICE)


def ends_of(candidate: Candidate) -> list[int]:
    """Uneven: one cell for each stage, and the last has the others."""
    return [*range(1, candidate.num_stages), NUM_CELLS]


def test_each_device_updates_the_cells_that_it_is_home_of() -> None:
    """Those of all its stages; and exchanges them with the other replicas."""
    tried = set()
    for candidate in every_candidate():
        ends, homes = ends_of(candidate), schedule_of(candidate).device_of_stage()
        replicas = [
            [f"{homes[k]} of {r}" for k in range(candidate.num_stages)]
            for r in range(candidate.num_replicas)
        ]
        devices = dict.fromkeys(itertools.chain(*replicas), 0.0)
        for cell, home in enumerate(homes_in_turn(ends, replicas)):
            weights, totals = MODEL.calls[cell].weights, MODEL.calls[cell].totals
            touched = 2 * weights + totals + 2 * MODEL.slot_bytes[cell]
            devices[home] += touched / DEVICE.memory_bandwidth
            others = candidate.num_replicas - 1
            devices[home] += others * (weights + totals) / DEVICE.link_bandwidth
        want = max(devices.values())
        assert seconds_of(candidate, ends) == pytest.approx(want)
        tried.add((candidate.num_replicas > 1, candidate.stages_per_device))
    assert len(tried) == 6


def test_two_stages_of_a_device_take_turns() -> None:
    """So where all cells are alike, they take as long as one of twice as many."""
    one = Candidate(1, 2, 1, 2, "1f1b", "never")
    two = dataclasses.replace(one, stages_per_device=2, schedule="interleaved")
    model = dataclasses.replace(
        MODEL,
        calls=[MODEL.calls[0]] * NUM_CELLS + [MODEL.calls[-1]],
        slot_bytes=[100] * NUM_CELLS,
    )
    halves, quarters = (
        update_seconds(model, schedule_of(way), ends, 1, DEVICE)
        for way, ends in ((one, [3, 6]), (two, [2, 3, 5, 6]))
    )
    # Cells 0, 1, 3, 4 are on the first device.
    assert quarters == pytest.approx(halves * 4 / 3)
