"""A search's result as text, with a breakdown of the step time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shlex
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from lingvo_pipe.core.quantities import bytes_text, number_text, seconds_text
from lingvo_pipe.core.tables import text_table
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.pipeline.simulation.bubble import split_time
from lingvo_pipe.planner.costs.device_needs import OversizedCandidate
from lingvo_pipe.planner.resources.candidate import Candidate
from lingvo_pipe.planner.resources.device_model import DeviceModel
from lingvo_pipe.planner.resources.hosts import Hosts
from lingvo_pipe.planner.resources.resources import Resources
from lingvo_pipe.planner.search.candidate_evaluation import Evaluation
from lingvo_pipe.planner.search.fastest_candidates import SearchResult

_HEADER = (
    *("step", "examples/s", "idle", "needs", "R", "K", "V", "M"),
    *("schedule", "recompute", "slower mostly by"),
)
# Params whose values are written with their type, since a model's may have another.
_TYPED = ("splits", "num_micro_batches", "recompute", "offload")
_NUM_NUMBERS, _VARIANT = 8, (8, 9)  # Columns.
_NUM_SIZES = 4  # R, K, V and M.
# In the column of the recomputation.
_OFFLOADED, _BY_STAGE = "never, offload", "by stage"
_BY_STAGE_LINES = (
    "By stage, devices stash what fits. Of their other cells they recompute some, and",
    "offload some: the lists of cells.",
)
_MAX_OVERSIZED = 3
_MAX_ADDRESSES = 4


def report(
    found: SearchResult, resources: Resources, how_to_run: Sequence[str] = ()
) -> str:
    """Returns the text that shows a search's result to the user."""
    best = found.fastest[0]
    used, available = best.candidate.total_devices, resources.num_devices
    unused = f"The first uses {used} of {available} devices; the others stay idle."
    oversized = found.oversized
    too_large = f"{len(oversized):,} evaluated ones do not fit, such as:"
    lines = [
        *text_table(
            [_HEADER, *_rows(found.fastest, resources.batch_size)],
            right=range(_NUM_NUMBERS),
        ),
        "",
        "The rows are the fastest for each schedule and way to recompute or offload.",
        f"A device needs this much of its {_room(resources)}. R replicas",
        "of K devices with V stages each share M micro-batches. Idle is the part of a",
        "step, before its update, in which a device computes nothing: bubbles, waiting",
        "for messages, and the overhead of operations.",
        f"{found.num_slower:,} more are slower.",
        *([too_large] if oversized else []),
        *(
            f"  {example.candidate}: a device would need {needed_text(example)}"
            for example in oversized[:_MAX_OVERSIZED]
        ),
        *([unused] if used < available else []),
        *(
            _BY_STAGE_LINES
            if any(x.candidate.is_by_stage for x in found.fastest)
            else []
        ),
        *_offload_lines(found.fastest),
        *_device_lines(best),
        "",
        *_start_lines(resources.devices[0], best),
        "",
        *how_to_run,
    ]
    return "\n".join(lines)


def run_flags(
    best: Evaluation, changes: str = "", hosts: Hosts | None = None
) -> list[str]:
    """Returns the trainer's flags that run a candidate.

    `changes` are changes of other params of the model, as text. On several hosts, each
    host is a worker. Devices are given by name, unless the placement takes the first
    devices in their order.
    """
    candidate = best.candidate
    override = "; ".join(
        f"task.pipeline.{name}{_type(name, value)} : {value}"
        for name, value in candidate.params(best.boundaries).items()
    )
    quoted = shlex.quote(f"{changes}; {override}" if changes else override)
    names = device_names(best, hosts)
    devices = ",".join(names) if names else str(candidate.total_devices)
    return [f"--devices={devices}", f"--model_params_override={quoted}"]


def _type(name: str, value: Any) -> str:
    return f" ({type(value).__name__})" if name in _TYPED else ""


def device_names(best: Evaluation, hosts: Hosts | None = None) -> list[str]:
    """Returns the names of a placement's devices, [] for the first in their order."""
    numbers = [*sum(best.placement, ())]
    if numbers == [*range(best.candidate.total_devices)]:
        return []
    return [_device_name(number, hosts) for number in numbers]


def _device_name(number: int, hosts: Hosts | None) -> str:
    if hosts is None:
        return f"gpu:{number}"
    return f"worker:{hosts.host(number)}/gpu:{number % hosts.devices_per_host}"


def _start_lines(device: DeviceModel, best: Evaluation) -> list[str]:
    used = sum(best.placement, ())
    number = 1 + max(map(device.hosts.host, used)) if device.hosts else 1
    if number == 1 or device.name.startswith("TPU"):  # TPUs are the trainer's own.
        return ["To run the first:"]
    addresses = [f"HOST{i}:2222" for i in range(number)]
    if number > _MAX_ADDRESSES:
        addresses[1:-1] = ["..."]
    return [
        f"To run the first, start a worker on each host I from 0 to {number - 1}:",
        "",
        "lingvo_pipe train --job=worker --task=I "
        f"--cluster=worker={','.join(addresses)}",
        "",
        "Give the trainer the same --cluster, and:",
    ]


def _room(resources: Resources) -> str:
    kinds = resources.limited_kinds
    if len(kinds) == 1:
        return bytes_text(kinds[0].usable_bytes)
    texts = [f"{bytes_text(kind.usable_bytes)} ({kind.name})" for kind in kinds]
    return f"{' or '.join(texts)}; it is the one with the least left"


def time_breakdown(evaluation: Evaluation) -> dict[str, float]:
    """Returns the seconds of a step by activity, averaged over devices."""
    splits = split_time(evaluation.timeline)
    recomputation = fmean(split.busy.get(Kind.RECOMPUTE, 0.0) for split in splits)
    busy = fmean(sum(split.busy.values()) for split in splits)
    idle = map(fmean, zip(*(split.idle for split in splits), strict=True))
    reasons = ("bubble", "imbalance", "communication", "overhead")
    return {
        "computing": busy - recomputation,
        "recomputation": recomputation,
        **dict(zip(reasons, idle, strict=True)),
        "update": evaluation.step_seconds - evaluation.timeline.step_seconds,
    }


def why_slower(slower: Evaluation, best: Evaluation) -> str:
    """Returns the activity that makes a step slower by the most time, or "as fast"."""
    if math.isclose(slower.step_seconds, best.step_seconds):
        return "as fast"
    seconds, of_best = time_breakdown(slower), time_breakdown(best)
    growth = {name: seconds[name] - of_best[name] for name in seconds}
    name = max(growth, key=growth.__getitem__)
    return f"{name} +{seconds_text(growth[name])}"


def needed_text(oversized: OversizedCandidate) -> str:
    """Returns the bytes that a device would need and does not have, as text."""
    bound, excess = "at least " * oversized.is_bound, bytes_text(oversized.excess)
    if any(oversized.needs.lacking):  # It depends on the device.
        return f"{bound}{excess} more than it has"
    return f"{bound}{bytes_text(oversized.needed_bytes)}, {excess} too much"


def _offload_lines(fastest: Sequence[Evaluation]) -> list[str]:
    needed = [max(x.bytes_on_hosts) for x in fastest if x.bytes_on_hosts]
    if not needed:
        return []
    return [
        "The memory of a device's host has the activations of what offloads, and the",
        "optimizer's slots with task.train.offload_slots: "
        f"up to {bytes_text(max(needed))} for each device.",
    ]


def _policy(candidate: Candidate) -> str:
    if candidate.is_by_stage:
        return f"{_BY_STAGE}, offload" if candidate.offloads else _BY_STAGE
    return _OFFLOADED if candidate.offloads else str(candidate.recompute)


def _range_text(start: int, end: int) -> str:
    return f"{start} to {end - 1}" if end > start + 1 else str(start)


def _device_lines(best: Evaluation) -> list[str]:
    if all(device == best.devices[0] for device in best.devices):
        return []
    order = best.timeline.schedule.stage_devices
    cells = list(itertools.pairwise([0, *best.boundaries]))
    rows = [("devices", "kind", "stages", "cells", "needs", "of")]
    for k, device in enumerate(best.devices):
        stages = [stage for stage, number in enumerate(order) if number == k]
        columns = (
            ", ".join(str(row[k]) for row in best.placement),
            device.name,
            ", ".join(map(str, stages)),
            ", ".join(_range_text(*cells[stage]) for stage in stages),
            bytes_text(best.bytes_by_device[k]),
            bytes_text(device.usable_bytes),
        )
        rows.append(columns)
    return [
        "",
        "The first takes the devices in their order. CUDA_VISIBLE_DEVICES gives the",
        "trainer's gpu:0, gpu:1, ... this order.",
        "",
        *text_table(rows, right=(4, 5)),
    ]


def _rows(fastest: Sequence[Evaluation], batch_size: int) -> list[list[str]]:
    """Returns the table's rows. Candidates with equal numbers share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for variant in fastest:
        row = [
            seconds_text(variant.step_seconds),
            number_text(batch_size / variant.step_seconds, 4),
            f"{variant.timeline.bubble_fraction:.1%}",
            bytes_text(variant.bytes_by_device[variant.fullest]),
            *map(str, dataclasses.astuple(variant.candidate)[:_NUM_SIZES]),
            variant.candidate.schedule,
            _policy(variant.candidate),
            "" if variant is fastest[0] else why_slower(variant, fastest[0]),
        ]
        shared = rows.setdefault(tuple(row[:_NUM_NUMBERS]), row)
        for column in _VARIANT:
            if row[column] not in shared[column].split(" or "):
                shared[column] += f" or {row[column]}"
    return list(rows.values())
