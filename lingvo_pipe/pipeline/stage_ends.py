"""Which cells make up which stage: what `splits`, costs and the memory limit mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.pipeline.measured_costs import measured_seconds
from lingvo_pipe.pipeline.memory_limit import MemoryLimit
from lingvo_pipe.pipeline.pipelining_rules import MEASURED, faults_of, shown
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.splitting.cell_costs import pipeline_costs
from lingvo_pipe.pipeline.splitting.cell_seconds import (
    BACKWARD_PER_FORWARD,
    CellSeconds,
)
from lingvo_pipe.pipeline.splitting.partition import is_auto, resolve_ends
from lingvo_pipe.pipeline.traced_cells import TracedCells, outside_graphs, trace_cells


class _Costs(NamedTuple):
    """For each cell what it costs, and what it hands on if that is known."""

    costs: Sequence[float]
    traffic: Sequence[float] | None = None


def count_stages(p: InstantiableParams, where: str) -> int:
    """The number of stages that the params of the layer at `where` ask for.

    Raises:
        ValueError: if they ask for none, or contradict each other.
    """
    _check_together(p, where)
    auto = is_auto(p.splits)
    splits = p.splits
    if auto:
        if len(p.devices) % p.num_replicas:
            raise ValueError(
                "devices must be a multiple of num_replicas, each of which has as "
                f"many; {where} has {len(p.devices)} devices and {p.num_replicas} "
                "replicas. Change one of them."
            )
        splits = len(p.devices) // p.num_replicas * p.stages_per_device
    with faults_of("splits", where):
        return len(resolve_ends(splits, len(p.cell_tpl)))


def choose_ends(
    p: InstantiableParams,
    where: str,
    schedule: Schedule,
    device: str,
    recomputed: Sequence[bool],
) -> list[int]:
    """The ends of the stages.

    Args:
        p: params of a PipeliningLayer; `count_stages` accepts them.
        where: the layer's path.
        schedule: for training.
        device: full name of the first; cells are measured there.
        recomputed: for each cell whether it is where the schedule recomputes.

    Raises:
        ValueError: if there are no such stages.
    """
    cells = _traced(p, where, device) if _are_traced(p) else None
    limit = None
    if p.memory_limit is not None and cells is not None:
        limit = MemoryLimit(p, where, schedule, cells, recomputed)
    if not is_auto(p.splits):
        ends = resolve_ends(p.splits, len(p.cell_tpl))
        if limit is not None:
            limit.check(ends)
        return ends
    again = [yes and Kind.RECOMPUTE in schedule.kinds for yes in recomputed]
    costs, traffic = _costs(p, where, cells, device, again)
    farthest = None if limit is None else limit.farthest()
    with faults_of("splits", where):
        ends = resolve_ends(
            p.splits, len(p.cell_tpl), schedule.num_stages, costs, traffic, farthest
        )
    if p.cell_costs == MEASURED:
        _tell(ends, costs, where)
    return ends


def needs_inputs(p: InstantiableParams) -> bool:
    """Whether `input_shapes` must be known to choose the stages."""
    counted = is_auto(p.splits) and (p.cell_costs is None or p.cell_costs == MEASURED)
    return counted or p.memory_limit is not None


def _are_traced(p: InstantiableParams) -> bool:
    """Whether more must be known of cells than FPropMeta says."""
    by_flops = p.cell_costs is None and p.memory_limit is None
    return p.input_shapes is not None and not by_flops


def _traced(p: InstantiableParams, where: str, device: str) -> TracedCells:
    try:
        return outside_graphs(trace_cells, p, device)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Cells are traced to know what they take and hand on. Set input_shapes and "
            f"input_dtypes to what goes into the first; with those of {where}: {error}"
        ) from error


def _costs(
    p: InstantiableParams,
    where: str,
    cells: TracedCells | None,
    device: str,
    recomputed: Sequence[bool],
) -> _Costs:
    """What each cell costs, and what it hands on.

    A cell costs its forward pass, its backward pass, and the forward pass once more if
    it is recomputed. The layers before do not run while the cells do: they are no
    reason to have fewer cells beside them.
    """
    traffic: Sequence[float] | None = None if cells is None else cells.traffic
    passes: Sequence[tuple[float, float]]
    if p.cell_costs is None:
        with faults_of("input_shapes", where):
            counted = pipeline_costs(p.before_tpl, p.cell_tpl, *p.input_shapes).cells
        traffic = counted.handed_on
        passes = [(flops, BACKWARD_PER_FORWARD * flops) for flops in counted.flops]
    elif p.cell_costs == MEASURED and cells is not None:
        passes = _measured(cells, where, device)
    else:
        return _Costs(p.cell_costs, traffic)
    costs = [
        forward * (1 + again) + backward
        for (forward, backward), again in zip(passes, recomputed, strict=True)
    ]
    return _Costs(costs, traffic)


def _measured(cells: TracedCells, where: str, device: str) -> list[CellSeconds]:
    try:
        return outside_graphs(measured_seconds, cells.calls, cells.specs, device)
    except tf.errors.OpError as error:
        raise ValueError(
            "Cells are measured on made-up inputs, numbers below 1 and integers of 0, "
            f"on {short_name(device)}; one of {where} can't be run so. {error.message} "
            "Set cell_costs to a number for each cell instead."
        ) from error


def _tell(ends: Sequence[int], seconds: Sequence[float], where: str) -> None:
    """Says which stages times led to, for the next run may lead to others."""
    shares = [
        f"{sum(seconds[a:b]) * 1e3:.3g}" for a, b in zip([0, *ends], ends, strict=False)
    ]
    tf.get_logger().warning(
        "%s: splits='auto' chose %s by measured times: a micro-batch takes the stages "
        "%s ms. Another run may measure other times; to have the same stages again, "
        "set splits to this list, and cell_costs to None.",
        where,
        list(ends),
        ", ".join(shares),
    )


def _check_together(p: InstantiableParams, where: str) -> None:
    """Raises ValueError unless each of the params that need others has them."""
    auto = is_auto(p.splits)
    if auto and p.devices is None:
        raise ValueError(
            f"splits='auto' makes a stage for each device; {where} has no devices. "
            "Name them, or set splits to the number of stages."
        )
    if p.cell_costs is not None and not auto:
        raise ValueError(
            "cell_costs must be None unless splits='auto', which alone goes by costs; "
            f"that of {where} is {shown(p.cell_costs)}, with splits={p.splits!r}. "
            "Set one of the two otherwise."
        )
    if p.input_dtypes is not None and len(p.input_dtypes) != len(p.input_shapes or []):
        raise ValueError(
            "input_dtypes must be None, or a list with a dtype for each of "
            f"input_shapes; those of {where} are {shown(p.input_dtypes)} and "
            f"{shown(p.input_shapes)}. Set both, or leave both None."
        )
    if needs_inputs(p) and p.input_shapes is None:
        raise ValueError(
            "splits='auto' needs input_shapes to count what cells cost, or cell_costs "
            f"that say so; and a memory_limit needs input_shapes too. {where} has "
            "none. Set them, to the shapes of a micro-batch."
        )
    if p.input_shapes is not None and not auto and p.memory_limit is None:
        raise ValueError(
            "input_shapes must be None unless splits='auto' or there is a memory_limit;"
            f" that of {where} is {shown(p.input_shapes)}, with splits={p.splits!r}. "
            "Leave it None, or set one of the two."
        )
