"""The params of a PipeliningLayer, and the layout of stages that they mean."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from lingvo_pipe import hyperparams
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.homes import replica_devices
from lingvo_pipe.pipeline.pipelining_rules import (
    check_each_param,
    count_parts,
    faults_of,
)
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.stage_ends import choose_ends, count_stages


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
        "For splits=auto, what cells cost. None: flops, by FPropMeta; measured: the "
        "time that each takes on the first device, for made-up inputs; or a number for "
        "each. Times differ from run to run, and so may the stages, on which neither "
        "results nor checkpoints depend: they are logged, to be written down as splits."
        " The layers of before_tpl count for nothing: they run while the pipeline "
        "stands still.",
    )
    p.Define(
        "memory_limit",
        None,
        "Bytes that a device may need for weights, totals of gradients and what it "
        "keeps of micro-batches, as PeakBytes counts them; the loss counts as keeping "
        "what it is given. splits=auto keeps within, each of several stages on a "
        "device within its share; other splits are checked. Not counted are the "
        "optimizer's slots, what an operation needs while it runs, and tensors within "
        "a layer whose size only a run decides.",
    )
    p.Define(
        "input_shapes",
        None,
        "The shapes of a micro-batch's inputs, by which it is known what cells cost, "
        "hand on, which decides among equal costs, and take, if memory is limited. May "
        "be left out where costs are given and memory is not. The trainer knows them.",
    )
    p.Define(
        "input_dtypes",
        None,
        "Their dtypes; None, as a whole or for one: fprop_dtype. FPropMeta needs none.",
    )
    p.Define(
        "num_micro_batches",
        1,
        "M, at most the mini-batch. In the trainer it may be auto, with splits=auto: "
        "what is fastest on the devices, which are measured. A run that goes on keeps "
        "its number.",
    )
    p.Define(
        "num_replicas",
        1,
        "R, how many pipelines run side by side, each on devices of its own and on its "
        "share of the micro-batches. A weight is on a device of one of them, with all "
        "that the optimizer keeps of it, and its gradients are added up there. The "
        "layers of before_tpl run once, on the first device of all. Not with several "
        "steps in a graph, task.train.steps_per_loop.",
    )
    p.Define(
        "num_parts",
        None,
        "Into how many parts the micro-batches are cut, each a run of the schedule; a "
        "replica runs its own one after another. None: one for each replica. Totals of "
        "the parts are added up in order, so that what a step leaves depends on their "
        "number, and not on that of the replicas.",
    )
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
        "gpipe, 1f1b, interleaved, zero_bubble, or the path of a .csv file; or local: "
        "1f1b in each block of stages that a LocalLossLayer ends. In the trainer it "
        "may be auto, with splits=auto: the fastest that fits into memory.",
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
        "a .csv file has it; never with zero_bubble; else always. In the trainer it "
        "may be auto, with splits=auto: the fastest policy that fits into memory.",
    )
    p.Define(
        "jit_compile", False, "Whether XLA compiles the layers; on TPUs it always does."
    )
    p.Define(
        "devices",
        None,
        "Names of the devices, those of a replica after those of another; None: the "
        "first of this process's.",
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """Stages, their devices and their schedule.

    Attributes:
        ends: of the stages.
        replicas: for each replica full names of devices, one for each stage.
        num_parts: into how many parts the micro-batches are cut.
        schedule: for training.
        recomputed: for each cell whether it is where the schedule recomputes.
    """

    ends: list[int]
    replicas: list[list[str]]
    num_parts: int
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
    num_stages = count_stages(p, where)
    if num_stages % per_device:
        raise ValueError(
            "stages_per_device must divide the number of stages; "
            f"{where} has {per_device} and {num_stages}. Change it, or splits."
        )
    num_parts = count_parts(p, where)
    num_devices = num_stages // per_device
    with faults_of("devices", where):
        devices = stage_devices(p.devices, num_devices * p.num_replicas)
    make = functools.partial(
        make_schedule,
        p.schedule,
        num_devices,
        p.num_micro_batches // num_parts,
        per_device,
        p.recompute,
    )
    with faults_of("schedule", where):
        schedule = make()
    cells = range(len(p.cell_tpl))
    listed = p.recompute if isinstance(p.recompute, (list, tuple)) else cells
    recomputed = [i in listed for i in cells]
    homes = schedule.device_of_stage()
    ends = choose_ends(p, where, schedule, devices[homes[0]], recomputed)
    stages = [homes[stage] for stage in range(num_stages)]
    with faults_of("devices", where):
        replicas = replica_devices(devices, p.num_replicas, stages)
    return Layout(
        ends,
        replicas,
        num_parts,
        make(block_ends=_block_ends(p, ends)),
        recomputed,
    )


def _block_ends(p: InstantiableParams, ends: Sequence[int]) -> list[int]:
    """The stages whose last cell ends a block that has a loss of its own."""
    return [
        stage
        for stage, end in enumerate(ends[:-1])
        if p.cell_tpl[end - 1].cls is LocalLossLayer
    ]
