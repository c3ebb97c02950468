"""The choice of stage boundaries from `splits`, cell costs and the memory limit."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import (
    UserError,
    UserLayerError,
    UserValueError,
    Words,
    shown,
)
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.cell_roles import CellRoles
from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.memory.stage_memory import StageMemory
from lingvo_pipe.pipeline.pipelining_rules import (
    MEASURED,
    count_batch_shards,
    problems_of,
)
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from lingvo_pipe.pipeline.splitting.cell_costs import BACKWARD_PER_FORWARD
from lingvo_pipe.pipeline.splitting.partitioning import is_auto, resolve_boundaries
from lingvo_pipe.pipeline.stage_choice.measured_costs import measured_seconds
from lingvo_pipe.pipeline.stage_choice.memory_limit import MemoryLimit
from lingvo_pipe.pipeline.stage_choice.traced_cells import (
    Result,
    TracedCells,
    outside_graphs,
    sizes_for_micro_batch,
    trace_cells,
)

_INPUT_PARAMS = ("input_shapes", "input_dtypes")


def count_stages(p: InstantiableParams, path: str) -> int:
    """Returns the number of stages that params define.

    Raises:
        ValueError: if params contradict each other, or `splits` is not valid.
    """
    _check_together(p, path)
    splits = p.splits
    if is_auto(splits):
        if len(p.devices) % p.num_replicas:
            raise UserValueError(
                path=f"{path}.devices",
                expected=f"a multiple of num_replicas, {p.num_replicas}",
                got=Words(f"{len(p.devices)} devices"),
                hint="Change one of them.",
            )
        splits = len(p.devices) // p.num_replicas * p.stages_per_device
    with problems_of("splits", path):
        return len(resolve_boundaries(splits, len(p.cell_tpl)))


def choose_boundaries(
    p: InstantiableParams,
    path: str,
    schedule: Schedule,
    device: str,
    roles: CellRoles,
) -> list[int]:
    """Returns the stage boundaries that `splits` defines, the best ones for 'auto'.

    `count_stages` must have accepted the params. `device` is the full name of the first
    device, on which cells are measured. All devices are taken to be of its kind.
    `roles` are the cells' roles in the training schedule, `schedule`.

    Raises:
        ValueError: if no stage boundaries are possible.
    """
    by_flops = p.cell_costs is None and p.memory_limit is None
    cells = limit = None
    if p.input_shapes is not None and not by_flops:
        cells = _for_inputs(p, path, trace_cells, device)
        if p.memory_limit is not None:
            limit = MemoryLimit(p, path, schedule, cells, device, roles)
    if not is_auto(p.splits):
        boundaries = resolve_boundaries(p.splits, len(p.cell_tpl))
        if limit is not None:
            limit.check(boundaries)
        return boundaries
    recomputes = Kind.RECOMPUTE in schedule.kinds
    offloads = Kind.OFFLOAD in schedule.kinds
    recomputed = [
        recomputes and is_recomputed and not (offloads and is_offloaded)
        for is_recomputed, is_offloaded in zip(
            roles.recomputed, roles.offloaded, strict=True
        )
    ]
    costs, traffic = _costs(p, path, cells, device, recomputed)
    feasible_end = None if limit is None else limit.feasible_end()
    with problems_of("splits", path):
        boundaries = balanced_boundaries(
            costs, schedule.num_stages, traffic, feasible_end
        )
    if p.cell_costs == MEASURED:
        _log_measured(boundaries, costs, path)
    return boundaries


def whole_memory(p: InstantiableParams, path: str) -> StageMemory:
    """Returns the memory of all cells and of a loss, for params with splits='auto'.

    Raises:
        ValueError: if params contradict each other, or a cell cannot be traced.
    """
    _check_together(p, path)
    with problems_of("devices", path):
        first, *_ = stage_devices(p.devices, len(p.devices))
    cells = _for_inputs(p, path, trace_cells, first)
    num_accumulators = count_batch_shards(p, path) // p.num_replicas
    return cells.memory([True] * len(cells.layers), num_accumulators)


def needs_inputs(p: InstantiableParams) -> bool:
    """Returns whether choosing the stages needs `input_shapes`."""
    by_costs = is_auto(p.splits) and (p.cell_costs is None or p.cell_costs == MEASURED)
    return by_costs or p.memory_limit is not None


def _for_inputs(
    p: InstantiableParams, path: str, trace: Callable[..., Result], *args: Any
) -> Result:
    """Returns the result of `trace(p, *args)`, which is called outside of graphs.

    An error that names neither a layer nor an input param becomes one about
    `input_shapes`.
    """
    try:
        return outside_graphs(trace, p, *args)
    except UserLayerError as error:
        raise error.within(path) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError) and error.path in _INPUT_PARAMS:
            raise error.within(path) from error
        raise UserValueError(
            path=f"{path}.input_shapes",
            expected="shapes of the first layer's inputs, which input_dtypes fit",
            got=p.input_shapes,
            hint=f"A layer cannot be traced: {error}",
        ) from error


def _costs(
    p: InstantiableParams,
    path: str,
    cells: TracedCells | None,
    device: str,
    recomputed: Sequence[bool],
) -> tuple[Sequence[float], Sequence[float] | None]:
    """Returns the costs of the cells, and the sizes of the cells' outputs or None.

    A cell costs its forward pass, its backward pass, and a second forward pass if it is
    recomputed. The prologue has no cost, because no cell runs at the same time.
    """
    traffic: Sequence[float] | None = None if cells is None else cells.traffic
    passes: Sequence[tuple[float, float]]
    if p.cell_costs is None:
        _, sizes = _for_inputs(p, path, sizes_for_micro_batch)
        traffic = [size.output_elements for size in sizes]
        passes = [(size.flops, BACKWARD_PER_FORWARD * size.flops) for size in sizes]
    elif p.cell_costs == MEASURED and cells is not None:
        try:
            passes = outside_graphs(measured_seconds, cells.layers, cells.specs, device)
        except tf.errors.OpError as error:
            raise UserValueError(
                path=f"{path}.cell_costs",
                expected=f"cells that run on {short_name(device)} on synthetic inputs, "
                "numbers below 1 and integers of 0",
                got=p.cell_costs,
                hint=f"{error.message} Set cell_costs to a number for each cell.",
            ) from error
    else:
        return p.cell_costs, traffic
    costs = [
        forward * (1 + is_recomputed) + backward
        for (forward, backward), is_recomputed in zip(passes, recomputed, strict=True)
    ]
    return costs, traffic


def _log_measured(
    boundaries: Sequence[int], seconds: Sequence[float], path: str
) -> None:
    stages = itertools.pairwise([0, *boundaries])
    tf.get_logger().warning(
        "%s: splits='auto' chose %s by measured times: the stages take %s ms per "
        "micro-batch. Another run may measure other times; to keep these stages, set "
        "splits to this list, and cell_costs to None.",
        path,
        list(boundaries),
        ", ".join(f"{sum(seconds[a:b]) * 1e3:.3g}" for a, b in stages),
    )


def _check_together(p: InstantiableParams, path: str) -> None:
    """Raises ValueError if params that depend on each other contradict each other."""
    auto, shapes = is_auto(p.splits), p.input_shapes
    expected = {}
    if auto and p.devices is None:
        expected["devices"] = "a device for each stage of splits='auto'"
    elif p.cell_costs is not None and not auto:
        expected["cell_costs"] = f"None unless splits='auto', with splits={p.splits!r}"
    elif p.input_dtypes is not None and len(p.input_dtypes) != len(shapes or []):
        expected["input_dtypes"] = f"None, or one for each of {shown(shapes)}"
    elif needs_inputs(p) and shapes is None:
        expected["input_shapes"] = (
            "shapes of a micro-batch, which splits='auto' without numbers as "
            "cell_costs, and memory_limit, need"
        )
    elif shapes is not None and not auto and p.memory_limit is None:
        expected["input_shapes"] = "None unless splits='auto' or memory_limit is set"
    for name, text in expected.items():
        raise UserValueError(
            path=f"{path}.{name}",
            expected=text,
            got=p.Get(name),
            hint="Change one of them.",
        )
