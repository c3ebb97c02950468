"""Schedules by name, such as "1f1b", or from a file. Needs no TensorFlow."""

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.schedules.building_block import v_half, v_min
from lingvo_pipe.pipeline.schedules.by_rule import (
    gpipe,
    interleaved,
    local,
    one_f_one_b,
    zero_bubble,
)
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.csv_file import read_csv
from lingvo_pipe.pipeline.schedules.offload import offloaded, stage_kinds
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.split_backward import (
    dualpipe_v,
    interleaved_zero_bubble,
    zero_bubble_v,
)

# By name: the rule, and the number of stages per device. None means any number.
_RULES: dict[str, tuple[Callable[..., Schedule], int | None]] = {
    "gpipe": (gpipe, 1),
    "1f1b": (one_f_one_b, 1),
    "zero_bubble": (zero_bubble, 1),
    "local": (local, 1),
    "interleaved": (interleaved, None),
    "interleaved_zero_bubble": (interleaved_zero_bubble, None),
    "zero_bubble_v": (zero_bubble_v, 2),
    "v_half": (v_half, 2),
    "v_min": (v_min, 2),
    "dualpipe_v": (dualpipe_v, 2),
}
_STAGES_HINTS = {
    1: "For several stages per device use 'interleaved'.",
    2: "Set splits to an even number of stages, too.",
}
SCHEDULE_NAMES = tuple(_RULES)
# Schedules whose stages go up the devices and down again, two per device.
V_SHAPED_NAMES = tuple(name for name, (_, stages) in _RULES.items() if stages == 2)
# Schedules that recompute nothing by default.
SPLIT_BACKWARD_NAMES = ("zero_bubble", "interleaved_zero_bubble", *V_SHAPED_NAMES)


def make_schedule(
    name: str,
    num_devices: int,
    num_micro_batches: int,
    stages_per_device: int = 1,
    recompute: str | Sequence[int] | None = None,
    block_boundaries: Collection[int] = (),
    offload: str | Sequence[int] | None = None,
    *,
    is_checked: bool = True,
) -> Schedule:
    """Returns a schedule for training on K devices with M micro-batches.

    The name is one of SCHEDULE_NAMES, or the path of a '.csv' file (see csv_file.py).
    `stages_per_device`, V, is 2 for those in V_SHAPED_NAMES. It is any number for
    'interleaved', 'interleaved_zero_bubble' and files, and 1 for all others. A file has
    K·V stages and assigns them to devices. The order of operations depends on
    `block_boundaries` (see `Schedule`) only in 'local'.

    `recompute` is a policy of recompute.py, a list of cells, or None. If None,
    schedules from files and those in SPLIT_BACKWARD_NAMES stay unchanged, and all
    others follow 'always'. If a list, the stages recompute only the listed cells, and
    the schedule follows 'always' unless it has RECOMPUTE operations already.

    `offload` is 'always', a list of cells, or None. Unless it is None, the schedule
    offloads (see `offloaded`). If a list, OFFLOAD operations of a file stay unchanged.
    If 'always', and `recompute` is None, stages that offload do not recompute.

    Raises:
        ValueError: if an argument or the file is not valid.
    """
    _check_arguments(name, num_devices, num_micro_batches, stages_per_device)
    if is_file(name):
        num_stages = num_devices * stages_per_device
        schedule = _from_file(name, num_devices, num_stages, num_micro_batches)
    elif name == "local":
        schedule = local(num_devices, num_micro_batches, block_boundaries)
    else:
        make, stages = _RULES[name]
        more = [stages_per_device] if stages is None else []
        schedule = make(num_devices, num_micro_batches, *more)
    if recompute is None:
        recomputes = recomputes_by_default(name)
    else:
        recomputes = isinstance(recompute, str) or Kind.RECOMPUTE not in schedule.kinds
    if recomputes and recompute is None and isinstance(offload, str):
        schedule = offloaded(schedule)
        by_stage = enumerate(stage_kinds(schedule))
        without_copies = [i for i, kinds in by_stage if Kind.OFFLOAD not in kinds]
        schedule, offload = recomputed(schedule, "always", without_copies), None
    elif recomputes:
        policy = recompute if isinstance(recompute, str) else "always"
        schedule = recomputed(schedule, policy)
    has_own = Kind.OFFLOAD in schedule.kinds
    if isinstance(offload, str) or (offload is not None and not has_own):
        schedule = offloaded(schedule)
    boundaries = frozenset(block_boundaries)
    schedule = dataclasses.replace(schedule, block_boundaries=boundaries)
    if is_checked:
        check(schedule, name)
    return schedule


def recomputes_by_default(name: str) -> bool:
    """Returns whether a schedule follows 'always' if `recompute` is None."""
    return not is_file(name) and name not in SPLIT_BACKWARD_NAMES


def is_file(name: str) -> bool:
    """Returns whether a schedule's `name` is the path of a file."""
    return str(name).endswith(".csv")


def _check_arguments(
    name: str, num_devices: int, num_micro_batches: int, stages_per_device: int
) -> None:
    if not is_file(name) and name not in SCHEDULE_NAMES:
        names = ", ".join(map(repr, SCHEDULE_NAMES))
        expected = f"{names} or a path ending in '.csv'"
        raise UserValueError(
            path="schedule", expected=expected, got=name, names=SCHEDULE_NAMES
        )
    check_counts(
        num_devices=num_devices,
        num_micro_batches=num_micro_batches,
        stages_per_device=stages_per_device,
    )
    _, stages = _RULES.get(name, (None, None))
    if stages is not None and stages != stages_per_device:
        raise UserValueError(
            path="stages_per_device",
            expected=f"{stages}, for the schedule {name!r}",
            got=stages_per_device,
            hint=_STAGES_HINTS[stages],
        )


def _from_file(
    path: str, num_devices: int, num_stages: int, num_micro_batches: int
) -> Schedule:
    try:
        schedule = read_csv(path)
    except OSError as error:
        raise UserValueError(
            f"Cannot read the schedule's file {os.fspath(path)!r}: {error.strerror}.",
            path="schedule",
            hint=f"Give an existing file's path, absolute or from {os.getcwd()!r}.",
        ) from error
    sizes = schedule.num_devices, schedule.num_stages, schedule.num_micro_batches
    file_sizes, pipeline_sizes = (
        "{} devices, {} stages and {} micro-batches".format(*numbers)
        for numbers in (sizes, (num_devices, num_stages, num_micro_batches))
    )
    if file_sizes != pipeline_sizes:
        raise UserValueError(
            path="schedule",
            expected=f"a file for {pipeline_sizes}",
            got=Words(f"{file_sizes} in {os.fspath(path)}"),
        )
    if not schedule.has_backward:
        raise UserValueError(
            path="schedule", expected="backward passes to train with", got=path
        )
    return schedule
