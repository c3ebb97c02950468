"""Params of a pipeline that are left to the planner, being `auto`.

Each is settled for the devices that are there, whose speed is measured: how long the
cells take, and what operations and messages cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_rules import check_each_param, count_parts
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.pipeline.splitting.partition import is_auto, is_count
from lingvo_pipe.planner.amounts import amount, seconds_text
from lingvo_pipe.planner.calibration import calibrated_device, knows_memory
from lingvo_pipe.planner.candidate import SCHEDULES
from lingvo_pipe.planner.constraints import Constraints
from lingvo_pipe.planner.evaluation import Evaluated
from lingvo_pipe.planner.measured_models import plan_measured
from lingvo_pipe.planner.plan_report import name_of
from lingvo_pipe.planner.resources import Resources
from lingvo_pipe.planner.traced_model import ModelTracer

AUTO = "auto"
_WHERE = "task.pipeline"
_PLANNED = ("num_micro_batches", "schedule", "recompute")


def take_auto(pipeline: InstantiableParams) -> set[str]:
    """The names of the params that are left to the planner, but for `splits`.

    Until they are settled they become what any pipeline can be.

    Raises:
        ValueError: if other params leave the planner no choice.
    """
    names = {name for name in _PLANNED if pipeline.Get(name) == AUTO}
    if not names:
        return names
    faults = list(_faults(pipeline))
    if faults:
        raise ValueError(
            f"Where params of {_WHERE} are auto, here {', '.join(sorted(names))}, "
            f"{'; and '.join(faults)}. Change these, or give numbers and names."
        )
    parts = pipeline.num_replicas
    plain = {
        "num_micro_batches": parts if is_count(parts) else 1,
        "schedule": "gpipe",
        "recompute": None,
    }
    pipeline.Set(**{name: plain[name] for name in names})
    return names


def settle_auto(
    task_params: InstantiableParams,
    names: Collection[str],
    batch_spec: NestedMap,
    batch_size: int,
    devices: Sequence[str],
    say: Callable[[str], None],
) -> str:
    """Settles what is left to the planner; returns a line for the user.

    Args:
        task_params: of a BaseTask; those of its pipeline are changed.
        names: as from `take_auto`.
        batch_spec: of a batch, `[B, ...]`.
        batch_size: B.
        devices: full names, as from `initialize_devices`.
        say: takes a line for the user before it takes long.

    Raises:
        ValueError: if nothing fits, or the other params can't be, or contradict each
            other.
    """
    pipeline = task_params.pipeline
    # What is wrong here is told before anything is measured.
    check_each_param(pipeline, _WHERE)
    count_parts(pipeline, _WHERE)
    tracer = ModelTracer(task_params, batch_spec, devices[0])
    say(f"planning {', '.join(sorted(names))}: cells are timed, which may take minutes")
    limit = pipeline.memory_limit
    resources = Resources(
        calibrated_device(devices),
        len(devices),
        batch_size,
        tracer.fprop_dtype,
        None if limit is None else int(limit),
        uses_all=True,
    )
    constraints = _constraints(pipeline, names)
    found = plan_measured(tracer, devices, resources, constraints)
    best = found.fastest[0]
    _set(pipeline, best)
    candidate = best.candidate
    return (
        f"planned: {name_of(candidate)}, splits={list(best.ends)}: "
        f"{seconds_text(best.step_seconds)} a step, idle "
        f"{best.timeline.bubble_fraction:.1%}, {amount(max(best.bytes_by_device))} on "
        "a device"
        f"{_unknown_memory(pipeline, devices)}"
    )


def _unknown_memory(pipeline: InstantiableParams, devices: Sequence[str]) -> str:
    """What to do where it is not known what fits."""
    if pipeline.memory_limit is not None or knows_memory(devices):
        return ""
    return (
        "; what workers' devices hold is not known, and nothing is limited: "
        f"{_WHERE}.memory_limit would limit it"
    )


def _faults(pipeline: InstantiableParams) -> list[str]:
    faults = []
    if not is_auto(pipeline.splits):
        faults.append(f"splits must be auto too, not {pipeline.splits}")
    if pipeline.schedule not in (*SCHEDULES, AUTO):
        faults.append(
            f"schedule must be auto or one of {', '.join(SCHEDULES)}, not "
            f"{pipeline.schedule}"
        )
    if pipeline.recompute not in (None, *POLICIES, AUTO):
        faults.append(f"recompute can't be a list, {pipeline.recompute}")
    if pipeline.stages_per_device != 1:
        faults.append(
            "stages_per_device must be 1, as it goes by the schedule, not "
            f"{pipeline.stages_per_device}"
        )
    if pipeline.num_parts not in (None, pipeline.num_replicas):
        faults.append(
            "num_parts must be None, for what is planned is a part for each replica, "
            f"not {pipeline.num_parts}"
        )
    if pipeline.micro_batch_size is not None:
        faults.append(
            "micro_batch_size must be None, as micro-batches that are planned have all "
            f"as many rows, not {pipeline.micro_batch_size}"
        )
    return faults


def _constraints(pipeline: InstantiableParams, names: Collection[str]) -> Constraints:
    """What is not left to the planner."""

    def given(name: str) -> Any:
        return None if name in names else pipeline.Get(name)

    return Constraints(
        num_replicas=pipeline.num_replicas,
        num_micro_batches=given("num_micro_batches"),
        schedule=given("schedule"),
        recompute=given("recompute"),
        has_own_recompute=(
            True if "recompute" not in names and pipeline.recompute is None else None
        ),
        names={name: f"{_WHERE}.{name}" for name in ("num_replicas", *_PLANNED)},
    )


def _set(pipeline: InstantiableParams, best: Evaluated) -> None:
    candidate = best.candidate
    pipeline.Set(
        splits=list(best.ends),
        stages_per_device=candidate.stages_per_device,
        num_micro_batches=candidate.num_micro_batches,
        schedule=candidate.schedule,
        recompute=candidate.recompute,
    )
