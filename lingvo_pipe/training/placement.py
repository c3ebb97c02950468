"""Which devices the stages of a model get: by its params, and by who runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.device_names import device_names
from lingvo_pipe.pipeline.pipelining_rules import (
    check_each_param,
    count_parts,
    faults_of,
)
from lingvo_pipe.pipeline.splitting.partition import is_auto, resolve_ends

_WHERE = "task.pipeline"


class Placement(NamedTuple):
    """What to run on.

    Attributes:
        devices: a number of them, or names.
        note: a line for the user where the model's params are set aside, else empty.
    """

    devices: int | Sequence[str]
    note: str = ""


def place_stages(
    pipeline: InstantiableParams, asked: int | Sequence[str] | None
) -> Placement:
    """Settles what the params of a model's pipeline and its user say of devices.

    Args:
        pipeline: params of a PipeliningLayer. Where `splits` is a number of stages it
            becomes that which `asked` means, and `num_parts` that of the replicas.
        asked: the flag --devices: a number of devices, or their full names; None:
            those that the params name, or as many as they have stages.

    Raises:
        ValueError: if a param can't be, the two contradict each other, or neither says
            how many stages there are.
    """
    check_each_param(pipeline, _WHERE)
    _settle_parts(pipeline)
    named, num_stages = pipeline.devices, _num_stages(pipeline)
    if asked is not None:
        if named is not None:
            _check_same(asked, named)
        note = _set_splits(pipeline, asked)
        return Placement(asked if named is None else named, note)
    if named is not None:
        return Placement(named)
    if num_stages is None:
        raise ValueError(
            f"{_WHERE}.splits='auto' makes as many stages as there are devices; say "
            "which: --devices=4, or their names."
        )
    num_devices = max(num_stages // pipeline.stages_per_device, 1)
    return Placement(num_devices * pipeline.num_replicas)


def _settle_parts(pipeline: InstantiableParams) -> None:
    """Notes the number of parts, on which bytes depend, as it goes by the replicas."""
    if pipeline.num_replicas > 1:
        pipeline.num_parts = count_parts(pipeline, _WHERE)


def _num_stages(pipeline: InstantiableParams) -> int | None:
    """The number of stages by `splits`; None if that goes by the devices."""
    if is_auto(pipeline.splits):
        return None
    with faults_of("splits", _WHERE):
        return len(resolve_ends(pipeline.splits, len(pipeline.cell_tpl)))


def _check_same(asked: int | Sequence[str], named: Sequence[str]) -> None:
    """Raises ValueError unless devices asked for may be those that params name."""
    with faults_of("devices", _WHERE):
        names = device_names(named)
    if asked != len(names) if isinstance(asked, int) else device_names(asked) != names:
        raise ValueError(
            f"--devices must agree with {_WHERE}.devices where that is set; it asks "
            f"for {_text(asked)}, and the model's params name {_text(named)}. Leave "
            f"--devices out, or set them aside by --model_params_override='{_WHERE}."
            "devices : None'."
        )


def _set_splits(pipeline: InstantiableParams, asked: int | Sequence[str]) -> str:
    """Has `splits` make stages for the devices asked for; returns a note."""
    splits, num_stages = pipeline.splits, _num_stages(pipeline)
    wanted = asked if isinstance(asked, int) else len(asked)
    if wanted % pipeline.num_replicas:
        raise ValueError(
            f"--devices must be a multiple of {_WHERE}.num_replicas, each of which has "
            f"as many; it asks for {_text(asked)}, for {pipeline.num_replicas} "
            "replicas. Change one of them."
        )
    wanted = wanted // pipeline.num_replicas * pipeline.stages_per_device
    if num_stages in (None, wanted):
        return ""
    if isinstance(splits, (list, tuple)):
        raise ValueError(
            f"--devices must be for the stages that {_WHERE}.splits lists; it asks for "
            f"{_text(asked)}, which makes {wanted} stage{'s' if wanted > 1 else ''}"
            f"{_of_replicas(pipeline)}, and the model's params list "
            f"{num_stages}, {list(splits)}. Leave --devices out, or have the stages "
            f"made anew by --model_params_override='{_WHERE}.splits (int) : {wanted}'."
        )
    pipeline.splits = wanted
    return (
        f"stages: {wanted} instead of {_WHERE}.splits, {splits}, as --devices asks for "
        f"{_text(asked)}"
    )


def _of_replicas(pipeline: InstantiableParams) -> str:
    number = pipeline.num_replicas
    return f" for each of {number} replicas" if number > 1 else ""


def _text(devices: int | Sequence[str]) -> str:
    """`2 devices`, or `cpu:0,cpu:1`."""
    if isinstance(devices, int):
        return f"{devices} device{'s' if devices > 1 else ''}"
    return ",".join(name.short for name in device_names(devices))
