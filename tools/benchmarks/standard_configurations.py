"""The configurations that the benchmark of pipelines measures. Pure."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from tools.benchmarks.configuration import (
    ZERO_BUBBLE,
    Configuration,
    Dtype,
    Recompute,
    Workload,
)

_LOCAL_STEPS_PER_CALL = 16
_TORCH_SCHEDULES = ("gpipe", "1f1b", "interleaved", *ZERO_BUBBLE)
# On one device, other schedules only add calls.
_TORCH_SCHEDULES_ALONE = ("gpipe", "1f1b")
_LAYERS_8 = Workload(num_layers=8, model_dim=256, batch_size=32, sequence_length=64)
_LAYERS_64 = Workload(num_layers=64, model_dim=32, batch_size=64, sequence_length=16)
_LAYERS_1024 = dataclasses.replace(_LAYERS_64, num_layers=1024)


def standard_configurations(num_devices: int) -> list[list[Configuration]]:
    """Returns all configurations, in groups that are compared with one another.

    Timed pipelines have `num_devices` devices.
    """
    every_other = tuple(range(0, _LAYERS_8.num_layers, 2))
    recomputed = ("gpipe", "1f1b", "interleaved")
    stashed = (*recomputed, *ZERO_BUBBLE)
    schedules: dict[tuple[int, Recompute, Dtype], Sequence[str]] = {
        (8, "always", "float32"): recomputed,
        (8, "never", "float32"): stashed,
        (8, "always", "bfloat16"): recomputed,
        (8, "never", "bfloat16"): stashed,
        (8, "except_last", "float32"): ("gpipe",),
        (8, every_other, "float32"): ("gpipe",),
        (16, "always", "float32"): recomputed,
        (16, "never", "float32"): ("gpipe", "zero_bubble"),
    }
    make = functools.partial(Configuration, "lingvo_pipe", _LAYERS_8, num_devices)
    groups: list[list[Configuration]] = []
    for (num_micro_batches, recompute, dtype), names in schedules.items():
        groups.append([])
        for name in names:
            stages = _stages_per_device(name)
            variant = make(num_micro_batches, name, recompute, stages, dtype=dtype)
            workers = recompute == "always" and dtype == "float32"
            groups[-1] += _compared(variant, name in ("gpipe", "1f1b") and workers)
        if recompute in ("always", "never"):
            groups[-1] += _peers(make(num_micro_batches, "", recompute, dtype=dtype))
    local = make(8, "local", "never", num_blocks=num_devices)
    many = dataclasses.replace(local, steps_per_call=_LOCAL_STEPS_PER_CALL)
    return [
        *groups,
        *(_compared(blocks, on_workers=False) for blocks in (local, many)),
        [Configuration("lingvo_pipe", _LAYERS_64, 8, 32, only_start=True)],
        [Configuration("lingvo_pipe", _LAYERS_1024, 16, 64, only_start=True)],
    ]


def quick_configurations(num_devices: int) -> list[list[Configuration]]:
    """Returns configurations of a tiny model, to check that everything runs."""
    workload = Workload(2 * num_devices, model_dim=8, batch_size=8, sequence_length=4)
    pipelined = Configuration("lingvo_pipe", workload, num_devices, 4)
    local = dataclasses.replace(
        pipelined, schedule="local", num_blocks=num_devices, steps_per_call=3
    )
    half = dataclasses.replace(pipelined, recompute="never", dtype="bfloat16")
    # Only the second group has peers that take seconds to compile.
    peers = [peer for peer in _peers(pipelined) if not peer.is_compiled]
    half_peers = [x for x in _peers(half) if x.schedule in ("gpipe", "accumulation")]
    return [
        [*_compared(pipelined, on_workers=True), *peers],
        [*_compared(half, on_workers=False), *half_peers],
        _compared(local, on_workers=False),
    ]


def _compared(pipelined: Configuration, on_workers: bool) -> list[Configuration]:
    configurations = [pipelined.on_one_device(), pipelined]
    return configurations + [pipelined.on_workers()] * on_workers


def _peers(like: Configuration) -> list[Configuration]:
    dtypes: dict[Dtype, tuple[Dtype, ...]] = {"bfloat16": ("bfloat16", "pure bfloat16")}
    peer = functools.partial(dataclasses.replace, like, placement=None)
    peers = [
        peer(
            system="torch",
            num_devices=num_devices,
            schedule=schedule,
            stages_per_device=_stages_per_device(schedule),
            dtype=dtype,
            is_compiled=is_compiled,
        )
        for dtype in dtypes.get(like.dtype, (like.dtype,))
        for is_compiled in (False, True)
        for schedule in _TORCH_SCHEDULES
        for num_devices in (like.num_devices, 1)
        if num_devices > 1 or schedule in _TORCH_SCHEDULES_ALONE
    ]
    return [*peers, peer(system="tensorflow", num_devices=1, schedule="accumulation")]


def _stages_per_device(schedule: str) -> int:
    interleaved = ("interleaved", "interleaved_zero_bubble", "zero_bubble_v")
    return 2 if schedule in interleaved else 1
