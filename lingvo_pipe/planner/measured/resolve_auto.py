"""Params of a pipeline that are `auto`, resolved by the planner on real devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError, raise_problems
from lingvo_pipe.core.quantities import bytes_text, seconds_text
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_rules import (
    PLANNED,
    check_each_param,
    count_batch_shards,
)
from lingvo_pipe.pipeline.schedules.recompute import POLICIES
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.planner.costs.traced_model import ModelTracer
from lingvo_pipe.planner.measured.calibration import knows_memory
from lingvo_pipe.planner.measured.measured_models import plan_measured
from lingvo_pipe.planner.measured.stored_calibration import machine_device
from lingvo_pipe.planner.resources.candidate import SCHEDULES
from lingvo_pipe.planner.resources.resources import Constraints, Resources
from lingvo_pipe.training.profiling.step_profile import PlannedStep

AUTO = "auto"
_PATH = "task.pipeline"
_FIXED = ("num_replicas", "memory_limit")


class ResolvedPlan(NamedTuple):
    """The plan of `resolve_auto`: a line for the user, and the predicted step."""

    line: str
    step: PlannedStep


def extract_auto(pipeline: InstantiableParams, path: str = _PATH) -> set[str]:
    """Returns the names of params that are `auto`, without `splits`.

    Sets these params to valid values, which `resolve_auto` later replaces.

    Raises:
        UserValueError: if the planner cannot work with the other params.
    """
    names = {name for name in PLANNED if pipeline.Get(name) == AUTO}
    if not names:
        return names  # The params may be frozen.
    auto = ", ".join(sorted(names))
    raise_problems(_problems(pipeline, path), f"Or set {auto}, which are auto.")
    number = pipeline.num_replicas if is_count(pipeline.num_replicas) else 1
    defaults = {"num_micro_batches": number, "schedule": "gpipe"}
    pipeline.Set(**{name: defaults.get(name) for name in names})
    return names


def resolve_auto(
    task_params: InstantiableParams,
    names: Collection[str],
    batch_spec: NestedMap,
    batch_size: int,
    devices: Sequence[str],
    log: Callable[[str], None],
    path: str = _PATH,
) -> ResolvedPlan:
    """Sets the params that were `auto`, and the stages, to the values of the best plan.

    `names` are from `extract_auto`, and `devices` from `initialize_devices`.
    `batch_spec` has the specs of a batch, `[B, ...]`. `log` is called with a line for
    the user before the long measurement. `path` names the pipeline in errors.

    Raises:
        UserValueError: if nothing fits, or other params are invalid or contradictory.
    """
    pipeline = task_params.pipeline
    # Checks come before anything is measured.
    check_each_param(pipeline, path)
    count_batch_shards(pipeline, path)
    tracer = ModelTracer(task_params, batch_spec, devices[0], path)
    log(f"planning {', '.join(sorted(names))}: timing cells may take minutes")
    limit = pipeline.memory_limit
    limited = None if limit is None else int(limit)
    resources = Resources(
        (machine_device(devices),) * len(devices),
        batch_size,
        tracer.fprop_dtype,
        memory_limit=limited,
        uses_all=True,
    )
    fixed: dict[str, Any] = {x: pipeline.Get(x) for x in PLANNED if x not in names}
    constraints = Constraints(
        pipeline.num_replicas,
        **fixed,
        has_own_recompute=True if fixed.get("recompute", AUTO) is None else None,
        may_offload="offload" in names,
        names={name: f"{path}.{name}" for name in (*_FIXED, *PLANNED)},
    )
    best = plan_measured(tracer, devices, resources, constraints).fastest[0]
    candidate = best.candidate
    pipeline.Set(**candidate.params(best.boundaries))
    if resources.devices[0].hosts is not None:
        # Neighbors in a pipeline, or in the exchange of weights, are on one host.
        pipeline.devices = [devices[x] for row in best.placement for x in row]
    line = (
        f"planned: {candidate}, splits={list(best.boundaries)}: "
        f"{seconds_text(best.step_seconds)} a step, idle "
        f"{best.timeline.bubble_fraction:.1%}, {bytes_text(max(best.bytes_by_device))} "
        "per device"
    )
    if limit is None and not knows_memory(devices):
        line += (
            "; the memory of workers' devices is not known, so there is no limit: set "
            f"{path}.memory_limit for one"
        )
    return ResolvedPlan(line, PlannedStep(best.timeline, best.bytes_by_device))


def _problems(p: InstantiableParams, path: str) -> list[UserValueError]:
    def one_of(*values: Any) -> str:
        return " or ".join(map(repr, values))

    schedules, policies = (AUTO, *SCHEDULES), [AUTO, None, *POLICIES]
    if p.offload == AUTO:
        policies = [AUTO, "never"]
    shards = None, p.num_replicas
    rules = {
        "splits": (is_auto(p.splits), "'auto'"),
        "slices": (not is_auto(p.slices), "None or the numbers of slices"),
        "schedule": (p.schedule in schedules, one_of(*schedules)),
        "recompute": (p.recompute in policies, one_of(*policies)),
        "cell_costs": (p.cell_costs is None, "None: the planner times cells"),
        "offload": (p.offload in (AUTO, None), one_of(AUTO, None)),
        "stages_per_device": (p.stages_per_device == 1, "1: the schedule sets it"),
        "num_batch_shards": (p.num_batch_shards in shards, one_of(*shards)),
        "micro_batch_size": (p.micro_batch_size is None, "None, for equal sizes"),
    }
    return [
        UserValueError(path=f"{path}.{name}", expected=expected, got=p.Get(name))
        for name, (is_right, expected) in rules.items()
        if not is_right
    ]
