"""Offload where a stage copies nothing, or may take more memory than recomputation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.pipeline.cell_roles import evenly_spread
from lingvo_pipe.pipeline.execution.pipeline_spec import Layout
from lingvo_pipe.pipeline.memory.call_bytes import CallBytes
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.pipelining_params import make_layout
from lingvo_pipe.pipeline.schedules.by_name import SCHEDULE_NAMES, V_SHAPED_NAMES
from lingvo_pipe.pipeline.schedules.offload import roles_in_stage, stage_kinds
from lingvo_pipe.pipeline.schedules.schedule import Kind

NUM_CELLS = 8
INPUT_BYTES = 10


def _params(**values: Any) -> InstantiableParams:
    cell = FCLayer.Params().Set(input_dim=3, output_dim=3)
    cells = [cell.Copy() for _ in range(NUM_CELLS)]
    return PipeliningLayer.Params().Set(name="pipe", cell_tpl=cells, **values)


def _peaks(layout: Layout, residuals: int) -> list[int]:
    """Returns the bytes of each device, if all cells stash as much."""
    calls = []
    stages = itertools.pairwise([0, *layout.boundaries])
    for (start, end), kinds in zip(stages, stage_kinds(layout.schedule), strict=True):
        allowed = layout.recomputed[start:end], layout.offloaded[start:end]
        for i, again, away in zip(
            range(start, end), *roles_in_stage(kinds, *allowed), strict=True
        ):
            calls.append(
                CallBytes(0, 0, residuals, 0, again, [i], [i + 1], offloaded=away)
            )
    memory = StageMemory(calls, dict.fromkeys(range(NUM_CELLS + 1), INPUT_BYTES))
    return memory.of_devices(layout.schedule, layout.boundaries)


@pytest.mark.parametrize("schedule", SCHEDULE_NAMES)
def test_a_device_needs_no_more_or_the_user_is_warned(
    schedule: str, warnings: pytest.LogCaptureFixture
) -> None:
    per_device = 2 if schedule in V_SHAPED_NAMES or "interleaved" in schedule else 1
    more = 0
    for num_devices, num_micro_batches in itertools.product((1, 2, 4), (4, 8)):
        p = _params(
            splits=num_devices * per_device,
            stages_per_device=per_device,
            schedule=schedule,
            num_micro_batches=num_micro_batches,
        )
        plain = make_layout(p.Copy(), "pipe")
        warnings.clear()
        offloaded = make_layout(p.Copy().Set(offload="always"), "pipe")
        kinds, text = stage_kinds(offloaded.schedule), "\n".join(warnings.messages)
        idle = [i for i, x in enumerate(kinds) if Kind.OFFLOAD not in x]
        assert f"pipe.offload: stages {idle} offload nothing" in text or not idle
        busy = [i for i, x in enumerate(kinds) if Kind.OFFLOAD in x]
        is_warned = f"pipe.offload: stages {busy} offload in place of rec" in text
        devices = offloaded.schedule.device_of_stage()
        for residuals in (1, 100):
            peaks = zip(
                *(_peaks(x, residuals) for x in (offloaded, plain)), strict=True
            )
            for device, (peak, before) in enumerate(peaks):
                if not any(devices[stage] == device for stage in busy):
                    assert peak == before
                elif peak > before:
                    more += 1
                    assert is_warned
    assert bool(more) == (schedule in ("gpipe", "1f1b", "interleaved", "local"))


def test_stages_that_offload_nothing_recompute(
    warnings: pytest.LogCaptureFixture,
) -> None:
    """The last stage would recompute nothing without offload, too."""
    p = _params(splits=4, schedule="1f1b", num_micro_batches=8, offload="always")
    kinds = stage_kinds(make_layout(p, "pipe").schedule)
    assert [Kind.RECOMPUTE in stage for stage in kinds] == [False, False, True, False]
    assert [Kind.OFFLOAD in stage for stage in kinds] == [True, True, False, False]
    (line,) = [x for x in warnings.messages if "offload nothing" in x]
    assert "stages [2] recompute" in line
    assert "stages [3] stash" in line


@pytest.mark.parametrize(
    ("values", "stages"),
    [
        ({"offload": [0, 7]}, "[3]"),
        ({"recompute": "never"}, "[2, 3]"),
        # The stage recomputes its other cell.
        ({"offload": [0], "schedule": "gpipe", "num_micro_batches": 2}, "[0]"),
    ],
)
def test_cells_that_stay_on_the_device_are_named(
    values: dict[str, Any], stages: str, warnings: pytest.LogCaptureFixture
) -> None:
    p = _params(splits=4, schedule="1f1b", num_micro_batches=8, offload="always")
    make_layout(p.Set(**values), "pipe")
    text = f"pipe.offload: stages {stages} offload nothing"
    assert any(text in x and "stash their activations" in x for x in warnings.messages)


@pytest.mark.parametrize("share", [0.01, 0.07, 0.25, 0.3, 1 / 3, 0.5, 0.7, 0.99])
def test_any_cells_in_a_row_have_their_share(share: float) -> None:
    cells = range(100, 201)
    chosen = evenly_spread(cells, share)
    assert chosen[0] == 100
    assert set(chosen) <= set(cells)
    for start, end in itertools.combinations(range(100, 202), 2):
        exact = (end - start) * Fraction(str(share))
        number = sum(start <= cell < end for cell in chosen)
        assert math.floor(exact) <= number <= math.ceil(exact)


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_half_of_equal_cells_save_half_of_the_bytes(splits: int) -> None:
    stashed, half, offloaded = (
        _peaks(make_layout(p.Set(offload=share), "pipe"), residuals=100)
        for share in (None, 0.5, "always")
        for p in [_params(splits=splits, num_micro_batches=12, recompute="never")]
    )
    means = [(a + b) / 2 for a, b in zip(stashed, offloaded, strict=True)]
    assert half == pytest.approx(means, rel=0.05)
    assert all(b < a / 3 for a, b in zip(stashed, offloaded, strict=True))


def test_blocks_of_one_stage_offload_nothing(
    warnings: pytest.LogCaptureFixture,
) -> None:
    """Each backward pass follows its forward pass, once the blocks are known."""
    p = _params(splits=4, schedule="local", num_micro_batches=8, offload="always")
    make_layout(p.Copy(), "pipe")
    assert not any("[0, 1, 2, 3] offload nothing" in text for text in warnings.messages)
    for i in (1, 3, 5):
        p.cell_tpl[i] = LocalLossLayer.Params()
    schedule = make_layout(p, "pipe").schedule
    assert schedule.kinds == {Kind.FORWARD, Kind.BACKWARD}
    assert any("[0, 1, 2, 3] offload nothing" in text for text in warnings.messages)
