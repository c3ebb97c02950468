"""However a model is cut and scheduled, training leaves the same bytes.

Compared are all weights, slots and moving averages after three steps, with those of one
stage that recomputes nothing.

    transformer       1, 2, 3, 4 and 8 devices with each schedule; each way to recompute
                      with each schedule that can, on two numbers of devices
    deep transformer  interleaved on 8 devices, 16 stages
    bfloat16          2 and 4 devices
    amoebanet         batch norm; 2 to 4 stages, each schedule and way to recompute once
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.pipeline.small_tasks import trained_bytes

SOME_CELLS = [0, 2]

# For each schedule and number of devices, what is recomputed.
WAYS: dict[str, dict[int, list[Any]]] = {
    "gpipe": {
        1: ["always"],
        2: ["never", "except_last", "always"],
        3: ["never", "except_last", SOME_CELLS],
        4: ["always"],
        8: [SOME_CELLS],
    },
    "1f1b": {
        1: [SOME_CELLS],
        2: ["always", "except_last", SOME_CELLS],
        3: ["always"],
        4: ["never", "except_last"],
        8: ["never"],
    },
    "interleaved": {
        1: ["except_last"],
        2: ["always", "never", SOME_CELLS],
        3: ["never"],
        4: ["always", "except_last", SOME_CELLS],
    },
    "zero_bubble": {1: [None], 2: [None], 3: [None], 4: [None], 8: [None]},
}

RUNS: list[tuple[str, int, str, Any]] = [
    *[
        ("transformer", num_devices, schedule, recompute)
        for schedule, by_devices in WAYS.items()
        for num_devices, ways in by_devices.items()
        for recompute in ways
    ],
    ("deep transformer", 8, "interleaved", "except_last"),
    ("bfloat16", 2, "zero_bubble", None),
    ("bfloat16", 4, "1f1b", "always"),
    ("amoebanet", 2, "zero_bubble", None),
    ("amoebanet", 2, "interleaved", "always"),
    ("amoebanet", 3, "1f1b", "except_last"),
    ("amoebanet", 4, "gpipe", SOME_CELLS),
]

# Otherwise stages are as even as can be.
UNEVEN_SPLITS = {("transformer", 2): [1, 8], ("transformer", 3): [1, 6, 8]}


@functools.cache
def _one_stage(task: str) -> dict[str, bytes]:
    return trained_bytes(task, splits=1, recompute="never")


@pytest.mark.parametrize(("task", "num_devices", "schedule", "recompute"), RUNS)
def test_training_leaves_the_bytes_of_one_stage(
    task: str, num_devices: int, schedule: str, recompute: Any
) -> None:
    a_device = 2 if schedule == "interleaved" else 1
    splits: Any = num_devices * a_device
    if schedule == "1f1b":
        splits = UNEVEN_SPLITS.get((task, num_devices), splits)
    found = trained_bytes(
        task,
        splits=splits,
        schedule=schedule,
        stages_per_device=a_device,
        recompute=recompute,
    )
    want = _one_stage(task)
    assert found.keys() == want.keys(), "paths know nothing of stages"
    assert [path for path in want if found[path] != want[path]] == []
