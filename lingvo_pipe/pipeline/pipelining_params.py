"""The params of a PipeliningLayer, and the layout of stages that they mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from lingvo_pipe import hyperparams
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.splitting.cell_costs import cell_costs
from lingvo_pipe.pipeline.splitting.partition import is_count, resolve_ends


def define_pipelining_params(p: hyperparams.Params) -> None:
    """Defines what is said about cells, stages, micro-batches and devices."""
    p.Define("cell_tpl", [], "Params of the layers, in order; at least one.")
    p.Define(
        "before_tpl",
        [],
        "Params of layers that run before, on the first device, on the whole "
        "mini-batch at once.",
    )
    p.Define(
        "tied",
        {},
        "Weights that are another's, by variable paths below this layer: "
        "{'cells_5/softmax/w': 'cells_0/emb/w'}. The second is the one that exists.",
    )
    p.Define(
        "splits",
        1,
        "The number of stages, of as even a number of layers as can be; or a list of "
        "the stages' ends: the number of layers up to and including each; or auto: as "
        "many stages as devices, of costs as even as can be. (To override one kind by "
        "another say which: 'splits (str) : auto', 'splits (list) : [2, 5]'.)",
    )
    p.Define("cell_costs", None, "For splits=auto; None: by FPropMeta.")
    p.Define(
        "input_shapes",
        None,
        "For splits=auto by FPropMeta: shapes of the inputs.",
    )
    p.Define("num_micro_batches", 1, "M, at most the mini-batch.")
    p.Define(
        "micro_batch_size",
        None,
        "Rows of a micro-batch; None: the mini-batch over M, rounded up.",
    )
    p.Define("batch_dim", 0, "The dimension of the examples in inputs and targets.")
    p.Define(
        "state_dtype",
        None,
        "Of the floating tensors that cells hand on; None: what each returns.",
    )
    p.Define(
        "schedule",
        "gpipe",
        "gpipe, 1f1b, interleaved, zero_bubble, or the path of a .csv file.",
    )
    p.Define(
        "stages_per_device",
        1,
        "V: stage s is on device s modulo K. Above 1 with interleaved only.",
    )
    p.Define(
        "recompute",
        None,
        "Which forward passes are computed again for the backward instead of keeping "
        "what they computed: always, never, except_last (micro-batch), or a list of "
        "the cells' indices. None: as the schedule has it, or always.",
    )
    p.Define(
        "jit_compile", False, "Whether XLA compiles the cells; on TPUs it always does."
    )
    p.Define(
        "devices", None, "Names of the devices; None: the first of this process's."
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """Stages, their devices and their schedule.

    Attributes:
        ends: of the stages.
        devices: full names, one for each stage.
        schedule: for training.
        recomputed: for each cell whether it is where the schedule recomputes.
    """

    ends: list[int]
    devices: list[str]
    schedule: Schedule
    recomputed: list[bool]


def make_layout(p: InstantiableParams, where: str) -> Layout:
    """The layout that the params of the layer at `where` mean.

    Raises:
        ValueError: if they mean none.
    """
    _check_cells(p, where)
    per_device = p.stages_per_device
    ends = _ends(p, where)
    if len(ends) % per_device:
        raise ValueError(
            "stages_per_device must divide the number of stages; "
            f"{where} has {per_device} and {len(ends)}. Change it, or splits."
        )
    devices = stage_devices(p.devices, len(ends) // per_device)
    is_named = p.recompute is None or isinstance(p.recompute, str)
    schedule = make_schedule(
        p.schedule,
        len(devices),
        p.num_micro_batches,
        per_device,
        p.recompute if is_named else "always",
    )
    homes = schedule.device_of_stage()
    return Layout(
        ends,
        [devices[homes[stage]] for stage in range(len(ends))],
        schedule,
        [True] * len(p.cell_tpl) if is_named else _recomputed_cells(p, where),
    )


def _check_cells(p: InstantiableParams, where: str) -> None:
    if not isinstance(p.cell_tpl, (list, tuple)) or not p.cell_tpl:
        raise ValueError(
            "cell_tpl must be a list of at least one layer's Params; that of "
            f"{where} is {p.cell_tpl!r}."
        )
    wrong = [
        f"{name} is {p.Get(name)!r}"
        for name in ("num_micro_batches", "stages_per_device")
        if not is_count(p.Get(name))
    ]
    if p.micro_batch_size is not None and not is_count(p.micro_batch_size):
        wrong.append(f"micro_batch_size is {p.micro_batch_size!r}")
    if p.batch_dim != 0 and not is_count(p.batch_dim):
        wrong.append(f"batch_dim is {p.batch_dim!r}")
    if not isinstance(p.jit_compile, bool):
        raise ValueError(
            f"jit_compile must be true or false; {where} has {p.jit_compile!r}."
        )
    if not isinstance(p.tied, Mapping):
        raise ValueError(
            "tied must be a map of variable paths to variable paths; "
            f"{where} has {p.tied!r}."
        )
    if p.state_dtype is not None and not tf.as_dtype(p.state_dtype).is_floating:
        raise ValueError(
            f"state_dtype must be one of floating-point numbers; {where} has "
            f"{p.state_dtype!r}."
        )
    if wrong:
        raise ValueError(
            "Numbers of micro-batches, rows and stages must be integers of at least 1, "
            f"batch_dim one of at least 0; of {where} {' and '.join(wrong)}."
        )


def _ends(p: InstantiableParams, where: str) -> list[int]:
    if p.splits != "auto":
        return resolve_ends(p.splits, len(p.cell_tpl))
    if p.devices is None:
        raise ValueError(
            f"splits='auto' makes a stage for each device; {where} has no devices. "
            "Name them, or set splits to the number of stages."
        )
    stage_devices(p.devices, len(p.devices))  # Refuses what is no list of devices.
    num_stages = len(p.devices) * p.stages_per_device
    costs, traffic = p.cell_costs, None
    if costs is None:
        if p.input_shapes is None:
            raise ValueError(
                "splits='auto' needs costs; "
                f"{where} has neither cell_costs nor input_shapes. Set one of them."
            )
        all_costs = cell_costs([*p.before_tpl, *p.cell_tpl], *p.input_shapes)
        costs, traffic = (each[len(p.before_tpl) :] for each in all_costs)
    return resolve_ends("auto", len(p.cell_tpl), num_stages, costs, traffic)


def _recomputed_cells(p: InstantiableParams, where: str) -> list[bool]:
    num_cells = len(p.cell_tpl)
    cells: Any = p.recompute
    known = range(num_cells)
    if not isinstance(cells, (list, tuple)) or not all(
        isinstance(i, int) and not isinstance(i, bool) and i in known for i in cells
    ):
        raise ValueError(
            "recompute must be always, never, except_last, or a list of indices of "
            f"cells, 0..{num_cells - 1}; {where} has {cells!r}."
        )
    return [i in cells for i in range(num_cells)]
