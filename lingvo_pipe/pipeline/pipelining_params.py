"""The params of a PipeliningLayer, and the layout of stages that they mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from lingvo_pipe import hyperparams
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.pipelining_rules import check_each_param, faults_of, shown
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.splitting.cell_costs import pipeline_costs
from lingvo_pipe.pipeline.splitting.partition import is_auto, resolve_ends

_FOR_AUTO = ("cell_costs", "input_shapes")


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
    p.Define(
        "cell_costs",
        None,
        "For splits=auto: a number for each cell. The layers of before_tpl have none: "
        "they run while the pipeline stands still.",
    )
    p.Define(
        "input_shapes",
        None,
        "For splits=auto, instead of cell_costs: the shapes of a micro-batch's inputs, "
        "of which FPropMeta knows the costs.",
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
        "Of the floating tensors that layers hand on; None: what each returns.",
    )
    p.Define(
        "schedule",
        "gpipe",
        "gpipe, 1f1b, interleaved, zero_bubble, or the path of a .csv file.",
    )
    p.Define(
        "stages_per_device",
        1,
        "V. Above 1 with interleaved, where stage s is on device s modulo K, or a .csv "
        "file of K·V stages, which says itself where they are.",
    )
    p.Define(
        "recompute",
        None,
        "Which forward passes are computed again for the backward instead of keeping "
        "what they computed: always, never, except_last (micro-batch), or a list of "
        "the indices of the cells that do, wherever the schedule recomputes. None: as "
        "a .csv file has it; never with zero_bubble; else always.",
    )
    p.Define(
        "jit_compile", False, "Whether XLA compiles the layers; on TPUs it always does."
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
        ValueError: if they mean none. Weights that can't be `tied` are found later,
            when the layers are made.
    """
    check_each_param(p, where)
    per_device = p.stages_per_device
    ends = _ends(p, where)
    if len(ends) % per_device:
        raise ValueError(
            "stages_per_device must divide the number of stages; "
            f"{where} has {per_device} and {len(ends)}. Change it, or splits."
        )
    with faults_of("devices", where):
        devices = stage_devices(p.devices, len(ends) // per_device)
    with faults_of("schedule", where):
        schedule = make_schedule(
            p.schedule, len(devices), p.num_micro_batches, per_device, p.recompute
        )
    homes = schedule.device_of_stage()
    cells = range(len(p.cell_tpl))
    listed = p.recompute if isinstance(p.recompute, (list, tuple)) else cells
    return Layout(
        ends,
        [devices[homes[stage]] for stage in range(len(ends))],
        schedule,
        [i in listed for i in cells],
    )


def _ends(p: InstantiableParams, where: str) -> list[int]:
    costs, traffic, num_stages = None, None, None
    if is_auto(p.splits):
        costs, traffic = _costs(p, where)
        num_stages = len(p.devices) * p.stages_per_device
    else:
        _check_no_costs(p, where)
    with faults_of("splits", where):
        return resolve_ends(p.splits, len(p.cell_tpl), num_stages, costs, traffic)


def _costs(
    p: InstantiableParams, where: str
) -> tuple[Sequence[float], Sequence[float] | None]:
    """What each cell costs, and what it hands on if that is known."""
    if p.devices is None:
        raise ValueError(
            f"splits='auto' makes a stage for each device; {where} has no devices. "
            "Name them, or set splits to the number of stages."
        )
    given = [name for name in _FOR_AUTO if p.Get(name) is not None]
    if len(given) != 1:
        has = "both" if given else "neither cell_costs nor input_shapes"
        raise ValueError(
            "splits='auto' needs costs, by cell_costs or from input_shapes; "
            f"{where} has {has}. Set one of them."
        )
    if p.cell_costs is not None:
        return p.cell_costs, None
    with faults_of("input_shapes", where):
        costs = pipeline_costs(p.before_tpl, p.cell_tpl, *p.input_shapes)
    # The layers before do not run while the cells do: they are no reason to have fewer
    # cells beside them.
    return costs.cells


def _check_no_costs(p: InstantiableParams, where: str) -> None:
    for name in _FOR_AUTO:
        if p.Get(name) is not None:
            raise ValueError(
                f"{name} must be None unless splits='auto', which alone goes by costs; "
                f"that of {where} is {shown(p.Get(name))}, with splits={p.splits!r}. "
                "Set one of the two otherwise."
            )
