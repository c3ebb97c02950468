"""Params of a PipeliningLayer, and the layout that they define.

The layout assigns cells to stages, and stages to the devices of each replica. Cells may
be cut into slices, either into given numbers of slices or into as few as fit.
"""

from __future__ import annotations

import functools

import tensorflow as tf

from lingvo_pipe import hyperparams
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.pipeline.cell_roles import (
    cell_roles,
    check_offloads,
    warn_of_offload,
)
from lingvo_pipe.pipeline.devices.stage_devices import stage_devices
from lingvo_pipe.pipeline.execution.pipeline_spec import Layout, replica_devices
from lingvo_pipe.pipeline.fewest_slices import fewest_slices
from lingvo_pipe.pipeline.pipelining_rules import (
    check_each_param,
    count_batch_shards,
    problems_of,
)
from lingvo_pipe.pipeline.schedules.by_name import make_schedule
from lingvo_pipe.pipeline.slices import with_slices
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from lingvo_pipe.pipeline.stage_choice.stage_boundaries import (
    choose_boundaries,
    count_stages,
    whole_memory,
)

# The most slices per device. More would be small, but their activations would remain.
_MAX_SLICES = 16
_Sliced = tuple[InstantiableParams, Layout]


def define_pipelining_params(p: hyperparams.Params) -> None:
    """Defines the params for cells, stages, micro-batches and devices."""
    p.Define("cell_tpl", [], "Params of the layers, in order; at least one.")
    p.Define(
        "before_tpl",
        [],
        "Params of the prologue: layers that run before the cells, on the first "
        "device, on the whole mini-batch at once.",
    )
    p.Define(
        "tied",
        {},
        "Tied weights, by variable paths below this layer: {'cells_5/softmax/w': "
        "'cells_0/emb/w'}. The second is the variable that exists.",
    )
    p.Define(
        "slices",
        None,
        "Layers in slices, cells of their own that may be on different devices: "
        "{'cells[3].feed_forward': 4}, or auto: as few as fit into memory_limit. "
        "Params that count cells, such as splits, count slices. Checkpoints hold whole "
        "weights, so a run may resume with other slices. If None, all cells are whole.",
    )
    p.Define(
        "splits",
        1,
        "The number of stages, with equal numbers of layers where possible; or the "
        "list of stage boundaries: for each stage the number of layers up to and "
        "including it; or auto: one stage per device, of costs as equal as possible. "
        "(To override one kind by another, give the type: 'splits (str) : auto', "
        "'splits (list) : [2, 5]'.)",
    )
    p.Define(
        "cell_costs",
        None,
        "For splits=auto, the costs of the cells: None for flops, which are traced; "
        "measured for the time of each cell on the first device, on synthetic inputs; "
        "or a list with a number for each cell. Measured times, and so the stages, may "
        "differ from run to run; the log shows the stages, to be copied to splits. The "
        "prologue has no cost, because no cell runs at the same time.",
    )
    p.Define(
        "memory_limit",
        None,
        "Bytes that a device may need, as PeakBytes counts them; the loss counts as "
        "stashing as much as its inputs, and their gradients. splits=auto stays within "
        "it, and each of several stages on a device within its share; other splits are "
        "checked. Not counted are the optimizer's slots, and tensors within a layer "
        "whose size only a run decides.",
    )
    p.Define(
        "input_shapes",
        None,
        "Shapes of a micro-batch's inputs. They determine the costs of the cells, the "
        "sizes of their outputs, which decide among equal costs, and their bytes, if "
        "memory is limited. Not needed where costs are given and memory is unlimited. "
        "The trainer sets them.",
    )
    p.Define(
        "input_dtypes",
        None,
        "Dtypes of the inputs. If None, or None for an input, it is fprop_dtype; to "
        "count flops, int32 if the layers refuse that.",
    )
    p.Define(
        "num_micro_batches",
        1,
        "M, at most the size of the mini-batch. In the trainer, and for "
        "resolve_pipeline, it may be auto, with splits=auto: the fastest on the "
        "measured devices. A resumed run uses the same number.",
    )
    p.Define(
        "num_replicas",
        1,
        "R, the number of pipelines that run side by side, each on devices of its own "
        "and on its share of the micro-batches. One replica owns each weight and its "
        "optimizer slots, and sums its gradients. The prologue runs once, on the first "
        "device of all. Must be 1 with several steps per graph, "
        "task.train.steps_per_loop.",
    )
    p.Define(
        "num_batch_shards",
        None,
        "The number of shards of the mini-batch, each a run of the schedule; a replica "
        "runs its shards one after another. If None, one per replica. Gradients of the "
        "shards are summed in order, so results depend on the number of shards, and "
        "not on the number of replicas.",
    )
    p.Define(
        "micro_batch_size",
        None,
        "Rows of a micro-batch. If None, the mini-batch's size over M, rounded up.",
    )
    p.Define("batch_dim", 0, "The dimension of the examples in inputs and targets.")
    p.Define(
        "state_dtype",
        None,
        "Dtype of the floating-point activations between layers. If None, the dtype "
        "that each layer returns.",
    )
    p.Define(
        "schedule",
        "gpipe",
        "gpipe, 1f1b, interleaved, zero_bubble, interleaved_zero_bubble, "
        "zero_bubble_v, v_half, v_min, dualpipe_v, or the path of a .csv file; or "
        "local: 1f1b in each block of stages that a LocalLossLayer ends. In the "
        "trainer it may be auto, with splits=auto: the fastest that fits into memory.",
    )
    p.Define(
        "stages_per_device",
        1,
        "V. Above 1 with interleaved and interleaved_zero_bubble, where stage s is on "
        "device s modulo K; 2 with zero_bubble_v, v_half, v_min and dualpipe_v, where "
        "the first K stages go up the devices and the others down again; or with a "
        ".csv file of K·V stages, which determines their devices itself.",
    )
    p.Define(
        "recompute",
        None,
        "The forward passes that are recomputed for the backward pass instead of "
        "stashing their residuals: always, never, except_last (micro-batch), or a list "
        "of the indices of cells that are recomputed wherever the schedule recomputes. "
        "If None, as in the .csv file, never with zero-bubble schedules, v_half, "
        "v_min and dualpipe_v, else always. In the trainer it may be auto, with "
        "splits=auto: the fastest policy that fits into memory.",
    )
    p.Define(
        "offload",
        None,
        "The cells whose residuals wait in the host's memory between forward and "
        "backward pass, copied beside the computation: always for all, a list of "
        "their indices, or a share of the cells above 0 and below 1, such as 0.5 for "
        "every second one from the first on: of any n consecutive cells n · share, "
        "rounded up or down. If None, as in the .csv file, else none. With it, "
        "recompute as None recomputes the other cells, and with always the stages that "
        "offload nothing. A share is taken of the cells that recompute does not list. "
        "A micro-batch stays on the device if its backward pass comes within three "
        "operations. In the trainer it may be auto, with splits=auto: what makes the "
        "step shortest.",
    )
    p.Define(
        "jit_compile", False, "Whether XLA compiles the layers; on TPUs it always does."
    )
    p.Define(
        "devices",
        None,
        "Names of the devices, replica by replica. If None, the first devices of this "
        "process.",
    )


def make_layout(p: InstantiableParams, path: str) -> Layout:
    """Returns the layout that params define. Replaces cells in `p` by their slices.

    Raises:
        ValueError: if params are invalid, or no stages fit into `memory_limit`.
    """
    check_each_param(p, path)
    num_cells = len(p.cell_tpl)
    layout = _checked_layout(p, path)
    warn_of_offload(p, path, layout.schedule, layout.boundaries, layout.offloaded)
    if p.state_dtype is not None and len(p.cell_tpl) > num_cells:
        text = (
            "%s.state_dtype: training and evaluation round between slices, too; "
            "decoding and exports run whole layers, so their results differ."
        )
        tf.get_logger().warning(text, path)
    return layout


def _checked_layout(p: InstantiableParams, path: str) -> Layout:
    if p.slices is None:
        try:
            return _layout(p, path)
        except DoesNotFitError as error:
            if not error.has_oversized_cell:
                raise
            fit = _fewest_slices(p, path)
            if fit is None:
                raise
            hint = f"Or cut layers: it fits with slices={fit[0]}, which 'auto' finds."
            raise DoesNotFitError(str(error), path=error.path, hint=hint) from error
    sliced, layout = (_auto if is_auto(p.slices) else _sliced)(p, path)
    p.Set(cell_tpl=sliced.cell_tpl, tied=sliced.tied, slices=None)
    return layout


def _sliced(p: InstantiableParams, path: str) -> _Sliced:
    p = with_slices(p, path)
    check_each_param(p, path)
    return p, _layout(p, path)


def _auto(p: InstantiableParams, path: str) -> _Sliced:
    if p.memory_limit is None or not is_auto(p.splits):
        raise UserValueError(
            path=f"{path}.slices",
            expected="a map of slices, or 'auto' with memory_limit and splits='auto'",
            got=Words(
                f"'auto' with memory_limit={p.memory_limit}, splits={p.splits!r}"
            ),
        )
    for name in ("cell_costs", "recompute", "offload"):
        if isinstance(value := p.Get(name), (list, tuple)):
            raise UserValueError(
                path=f"{path}.{name}",
                expected="no list by cell, since slices='auto' changes the cells",
                got=value,
                hint="List the slices that 'auto' finds, which the log names.",
            )
    if (fit := _fewest_slices(p, path)) is not None:
        slices, sliced = fit
        if slices:
            text = "%s.slices: 'auto' cuts %s. To keep these slices, list them."
            tf.get_logger().warning(text, path, slices)
        return sliced
    try:
        return _sliced(p.Copy().Set(slices={}), path)
    except DoesNotFitError as error:
        raise DoesNotFitError(
            f"{path}.slices: 'auto' found no slices that fit into "
            f"memory_limit={p.memory_limit}. Without slices: {error}",
            path=f"{path}.slices",
        ) from error


def _fewest_slices(
    p: InstantiableParams, path: str
) -> tuple[dict[str, int], _Sliced] | None:
    """Searches for the fewest slices with which the model fits into `memory_limit`.

    Returns the number of slices of each part that is cut, by its path, and the result
    of `_sliced`. Returns None if no slices that fit are found.
    """
    memory, num_cells = whole_memory(p, path), len(p.cell_tpl)
    num_devices = len(p.devices) // p.num_replicas
    if memory.held(0, num_cells) > num_devices * p.memory_limit:
        return None  # However it is cut.

    def attempt(slices: dict[str, int]) -> tuple[_Sliced | None, float]:
        try:
            return _sliced(p.Copy().Set(slices=slices), path), p.memory_limit
        except DoesNotFitError as error:
            return None, error.smallest_limit
        except UserValueError:  # Fewer cells than stages, or ties across dimensions.
            return None, 0.0

    max_slices = _MAX_SLICES * num_devices
    return fewest_slices(p, memory.by_cell(), p.memory_limit, max_slices, attempt)


def _layout(p: InstantiableParams, path: str) -> Layout:
    """Returns the layout of `cell_tpl` without cutting cells. `p` must be checked."""
    per_device = p.stages_per_device
    num_stages = count_stages(p, path)
    if num_stages % per_device:
        raise UserValueError(
            path=f"{path}.stages_per_device",
            expected=f"a divisor of the number of stages, {num_stages}",
            got=per_device,
        )
    num_batch_shards = count_batch_shards(p, path)
    num_devices = num_stages // per_device
    with problems_of("devices", path):
        devices = stage_devices(p.devices, num_devices * p.num_replicas)
    roles = cell_roles(p, path)
    make = functools.partial(
        make_schedule,
        p.schedule,
        num_devices,
        p.num_micro_batches // num_batch_shards,
        per_device,
        roles.recompute,
        offload=roles.offload,
    )
    with problems_of("schedule", path):
        schedule = make()
    recomputed, offloaded = roles.recomputed, roles.offloaded
    check_offloads(schedule, recomputed, offloaded, devices, path)
    device_of_stage = schedule.stage_devices
    first = devices[device_of_stage[0]]
    boundaries = choose_boundaries(p, path, schedule, first, roles)
    with problems_of("devices", path):
        replicas = replica_devices(devices, p.num_replicas, device_of_stage)
    block_boundaries = [
        stage
        for stage, end in enumerate(boundaries[:-1])
        if issubclass(p.cell_tpl[end - 1].cls, LocalLossLayer)
    ]
    across_blocks = schedule
    if block_boundaries:
        schedule = make(block_boundaries=block_boundaries)
        check_offloads(schedule, recomputed, offloaded, devices, path)
    return Layout(
        boundaries,
        replicas,
        num_batch_shards,
        schedule,
        across_blocks,
        recomputed,
        offloaded,
    )
