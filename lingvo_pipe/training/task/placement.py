"""Devices of a model's stages, from its params and the flag --devices."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.model_size import num_parameters
from lingvo_pipe.pipeline import pipelining_rules
from lingvo_pipe.pipeline.devices.device_names import device_names, short_name
from lingvo_pipe.pipeline.slices import with_slices
from lingvo_pipe.pipeline.splitting.partitioning import is_auto, resolve_boundaries
from lingvo_pipe.training.task.base_task import BaseTask

_PATH = "task.pipeline"


class Placement(NamedTuple):
    """Devices to run on: their number, or their names."""

    devices: int | Sequence[str]
    note: str = ""  # Line for the user if the flag overrides the model's params.


def place_stages(
    pipeline: InstantiableParams, flag: int | Sequence[str] | None
) -> Placement:
    """Returns the devices to run on, from a pipeline's params and the flag --devices.

    The flag is a number of devices or their full names. If it is None, the devices are
    those in the params, or as many as stages and replicas need. If the param `splits`
    is a number, it is set to the number of stages for these devices. With several
    replicas, the param `num_batch_shards` is set too.

    Raises:
        ValueError: if the params and the flag do not fit together.
    """
    pipelining_rules.check_each_param(pipeline, _PATH)
    if pipeline.num_replicas > 1:  # The bytes of results depend on the shards.
        pipeline.num_batch_shards = pipelining_rules.count_batch_shards(pipeline, _PATH)
    named, num_stages = pipeline.devices, None
    if not is_auto(pipeline.splits):
        splits, num_cells = pipeline.splits, _num_cells(pipeline)
        with pipelining_rules.problems_of("splits", _PATH):
            num_stages = len(resolve_boundaries(splits, num_cells))
    if flag is not None:
        if named is not None:
            _check_same(flag, named)
        note = _set_splits(pipeline, flag, num_stages)
        return Placement(flag if named is None else named, note)
    if named is not None:
        return Placement(named)
    if num_stages is None:
        raise UserValueError(
            path="--devices",
            expected=f"a number of devices, or their names, with {_PATH}.splits='auto'",
            got=None,
        )
    num_devices = max(num_stages // pipeline.stages_per_device, 1)
    return Placement(num_devices * pipeline.num_replicas)


def _check_same(flag: int | Sequence[str], named: Sequence[str]) -> None:
    with pipelining_rules.problems_of("devices", _PATH):
        names = device_names(named)
    if flag != len(names) if isinstance(flag, int) else device_names(flag) != names:
        raise UserValueError(
            path="--devices",
            expected=f"the devices of {_PATH}.devices, {_text(named)}",
            got=Words(_text(flag)),
            hint="Leave --devices out, or override the params by "
            f"--model_params_override='{_PATH}.devices : None'.",
        )


def _set_splits(
    pipeline: InstantiableParams, flag: int | Sequence[str], num_stages: int | None
) -> str:
    """Sets `splits` to fit the flag --devices. Returns a line about a change, or ""."""
    splits, num_replicas = pipeline.splits, pipeline.num_replicas
    number = flag if isinstance(flag, int) else len(flag)
    if number % num_replicas:
        raise UserValueError(
            path="--devices",
            expected=f"a multiple of {_PATH}.num_replicas, {num_replicas}, since "
            "replicas are of equal size",
            got=Words(_text(flag)),
        )
    number = number // num_replicas * pipeline.stages_per_device
    if not isinstance(splits, (list, tuple)) and not is_auto(pipeline.slices):
        num_cells = _num_cells(pipeline)
        with pipelining_rules.problems_of("splits", _PATH):  # Before devices are made.
            resolve_boundaries(number, num_cells)
    if num_stages in (None, number):
        return ""
    if isinstance(splits, (list, tuple)):
        stages = f"{number} stage{'s' if number > 1 else ''}"
        if num_replicas > 1:
            stages += f" for each of {num_replicas} replicas"
        raise UserValueError(
            path="--devices",
            expected=f"devices for the {num_stages} of {_PATH}.splits, {list(splits)}",
            got=Words(f"{_text(flag)}, for {stages}"),
            hint="Leave --devices out, or choose other stages by "
            f"--model_params_override='{_PATH}.splits (int) : {number}'.",
        )
    pipeline.splits = number
    return (
        f"stages: {number} instead of {_PATH}.splits, {splits}, since --devices asks "
        f"for {_text(flag)}"
    )


def _num_cells(pipeline: InstantiableParams) -> int:
    if is_auto(pipeline.slices) and not is_auto(pipeline.splits):
        raise UserValueError(
            path=f"{_PATH}.splits",
            expected=f"'auto', since {_PATH}.slices='auto' chooses the number of cells",
            got=pipeline.splits,
            hint="Or list the slices.",
        )
    return len(with_slices(pipeline, _PATH).cell_tpl)


def _text(devices: int | Sequence[str]) -> str:
    if isinstance(devices, int):
        return f"{devices} device{'s' if devices > 1 else ''}"
    return ",".join(name.short for name in device_names(devices))


def describe_train_loss(task: BaseTask) -> str:
    """Returns a line on how a task's losses in training and test differ, or ""."""
    parts = " and ".join(task.OnlyInTraining())
    return f"The train loss includes {parts}; the test loss does not." if parts else ""


def describe_run(task: BaseTask) -> str:
    """Returns a line with a task's parameters, stages and devices."""
    pipeline = task.pipeline
    replicas = [", ".join(map(short_name, devices)) for devices in pipeline.replicas]
    replicas_text = f"replicas: {len(replicas)}; " if len(replicas) > 1 else ""
    trained = task.TrainedVariables().values()
    num_trained = sum(math.prod(variable.shape) for variable in trained)
    num_frozen = num_parameters(task) - num_trained
    frozen = f" and {num_frozen:,} frozen" if num_frozen else ""
    return (
        f"parameters: {num_trained:,}{frozen}; {replicas_text}"
        f"stages: {pipeline.num_stages} ({' | '.join(replicas)}); "
        f"micro-batches: {pipeline.params.num_micro_batches}"
    )
