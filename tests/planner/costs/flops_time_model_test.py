"""The seconds of the weights' update, device by device."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from lingvo_pipe.pipeline.execution.pipeline_spec import owners_round_robin
from lingvo_pipe.planner.costs.flops_time_model import update_seconds
from lingvo_pipe.planner.costs.model_costs import ModelCosts
from tests.planner.made_up_model import (
    NUM_CELLS,
    every_candidate,
    made_up_device,
    made_up_model,
    schedule_of,
)

DEVICE = made_up_device(10**6)
MODEL = made_up_model(1)


# Some cells have no slots, and their weights are updated on the host, too.
AWAY = dataclasses.replace(
    MODEL,
    slot_bytes=[0] * NUM_CELLS,
    host_slot_bytes=[0, *MODEL.slot_bytes[1:-1], 0],
)


@pytest.mark.parametrize(
    ("model", "slowest"), [(MODEL, 1.0), (MODEL, 0.1), (AWAY, 0.1)]
)
def test_each_device_updates_the_cells_that_it_owns(
    model: ModelCosts, slowest: float
) -> None:
    """It updates all its stages, and exchanges them with the other replicas."""
    tried, rng = set(), random.Random(0)
    for candidate in every_candidate():
        # Uneven stages: one cell each, and the last has the others.
        boundaries = [*range(1, candidate.num_stages), NUM_CELLS]
        schedule, num_replicas = schedule_of(candidate), candidate.num_replicas
        device_of_stage = schedule.device_of_stage()
        replicas = [
            [f"{device_of_stage[k]} of {r}" for k in range(candidate.num_stages)]
            for r in range(num_replicas)
        ]
        devices = dict.fromkeys(itertools.chain(*replicas), 0.0)
        kinds = [
            dataclasses.replace(
                DEVICE,
                memory_bandwidth=1e6 * rng.uniform(slowest, 1),
                link_bandwidth=1e5 * rng.uniform(slowest, 1),
                host_bandwidth=1e5 * rng.uniform(slowest, 1),
            )
            for _ in range(candidate.num_devices)
        ]
        for cell, owner in enumerate(owners_round_robin(boundaries, replicas)):
            call = model.calls[cell]
            touched = 2 * call.weights + call.accumulators + 2 * model.slot_bytes[cell]
            kind = kinds[int(owner.split()[0])]
            devices[owner] += touched / kind.memory_bandwidth
            if slots := model.host_slot_bytes:
                copied = call.weights + call.accumulators + 2 * slots[cell]
                devices[owner] += kind.copy_seconds(copied)
            sent = (num_replicas - 1) * (call.weights + call.accumulators)
            devices[owner] += sent / kind.link_bandwidth
        seconds = update_seconds(model, schedule, boundaries, num_replicas, kinds)
        assert seconds == pytest.approx(max(devices.values()))
        tried.add((num_replicas > 1, candidate.stages_per_device))
    assert len(tried) == 6
