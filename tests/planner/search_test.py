"""The search finds what looking at every candidate finds."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import tensorflow as tf

from lingvo_pipe.optional_nest import spec_of
from lingvo_pipe.planner.candidate import candidates
from lingvo_pipe.planner.cell_seconds import CellSeconds, counted_seconds
from lingvo_pipe.planner.device_model import DEVICES, parse_devices
from lingvo_pipe.planner.evaluation import Evaluated, TooLarge, evaluate
from lingvo_pipe.planner.model_costs import ModelCosts
from lingvo_pipe.planner.search import search
from lingvo_pipe.planner.traced_model import ModelTracer
from tests.pipeline.small_tasks import TASKS

BATCH_SIZE = 8
SLOT_BYTES = 8.0
# One on which the small model takes a while, so that not all is overhead.
SLOW = dataclasses.replace(DEVICES["P100"], flops={"float32": 1e8})


@functools.cache
def _tracer() -> ModelTracer:
    task = TASKS["transformer"]
    spec = tf.nest.map_structure(spec_of, task.make_batch(BATCH_SIZE, 0))
    return ModelTracer(task.make_params().Set(name="task"), spec)


@functools.cache
def _model(num_rows: int) -> tuple[ModelCosts, list[CellSeconds]]:
    costs = _tracer().trace(num_rows).costs
    return costs, counted_seconds(costs, SLOW, "float32")


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_it_finds_the_fastest_that_fit(num_devices: int, share: float) -> None:
    model, _ = _model(1)
    everything = model.memory.weights(0, model.num_cells) * 6
    device = dataclasses.replace(SLOW, memory=int(everything * share))
    choices = list(candidates(num_devices, model.num_cells, BATCH_SIZE))
    assert len(choices) == len(set(choices)) > num_devices
    every = [
        evaluate(c, *_model(BATCH_SIZE // c.num_micro_batches), device, SLOT_BYTES)
        for c in choices
    ]
    fitting = [each for each in every if isinstance(each, Evaluated)]
    for each in fitting:
        assert max(each.bytes_by_device) <= device.memory
        assert each.ends[-1] == model.num_cells
    found = search(choices, _model, device, BATCH_SIZE, SLOT_BYTES, num_best=3)
    fastest = sorted(each.step_seconds for each in fitting)[:3]
    assert [each.step_seconds for each in found.best] == fastest
    total = len(found.best) + found.slower + len(found.too_large)
    assert total == len(choices)
    assert all(each.needed > device.memory for each in found.too_large)
    too_large = {each.candidate for each in every if isinstance(each, TooLarge)}
    assert {each.candidate for each in found.too_large} <= too_large


def test_devices_are_numbers_of_a_kind() -> None:
    assert parse_devices("8xtpuv3") == (8, "TPUv3")
    assert parse_devices("H200") == (1, "H200")
    for text in ("0xTPUv3", "8 TPUv3", ""):
        with pytest.raises(ValueError, match="such as 8xTPUv3"):
            parse_devices(text)
    with pytest.raises(ValueError, match="Did you mean 'TPUv3'|Did you mean 'TPUv2'"):
        parse_devices("8xTPUv4")
