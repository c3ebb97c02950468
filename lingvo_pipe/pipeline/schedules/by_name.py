"""From a schedule's name, or file, to the schedule. Pure."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Sequence

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.csv_file import read_csv
from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.interleaved import interleaved
from lingvo_pipe.pipeline.schedules.local import local
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule
from lingvo_pipe.pipeline.schedules.sizes import check_sizes
from lingvo_pipe.pipeline.schedules.zero_bubble import zero_bubble

_ONE_STAGE_A_DEVICE = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zero_bubble": zero_bubble,
}
SCHEDULE_NAMES = (*_ONE_STAGE_A_DEVICE, "local", "interleaved")


def make_schedule(
    name: str,
    num_devices: int,
    num_micro_batches: int,
    stages_per_device: int = 1,
    recompute: str | Sequence[int] | None = None,
    block_ends: Collection[int] = (),
) -> Schedule:
    """Makes a schedule to train with; it has passed `check`.

    Args:
        name: one of SCHEDULE_NAMES, or the path of a file, ending in '.csv', in the
            format of csv_file.py.
        num_devices: K.
        num_micro_batches: M.
        stages_per_device: V, above 1 for 'interleaved' and files alone. A file has
            K·V stages, and says itself which device has which.
        recompute: a policy of recompute.py. None: 'always', but 'zero_bubble' does not
            recompute, and a file is taken as it is. A list of cells, which is for
            stages to follow: 'always', but a file with RECOMPUTE operations is taken
            as it is.
        block_ends: see `Schedule`; for 'local' also what it is made by.

    Raises:
        ValueError: saying which argument can't be, and why; or what is wrong with the
            file.
    """
    _check_arguments(name, num_devices, num_micro_batches, stages_per_device)
    if _is_file(name):
        num_stages = num_devices * stages_per_device
        schedule = _from_file(name, num_devices, num_stages, num_micro_batches)
    elif name == "local":
        schedule = local(num_devices, num_micro_batches, block_ends)
    elif name == "interleaved":
        schedule = interleaved(num_devices, num_micro_batches, stages_per_device)
    else:
        schedule = _ONE_STAGE_A_DEVICE[name](num_devices, num_micro_batches)
    policy = _policy(name, schedule, recompute)
    if policy is not None:
        schedule = recomputed(schedule, policy)
    schedule = dataclasses.replace(schedule, block_ends=frozenset(block_ends))
    try:
        check(schedule)
    except ValueError as error:
        raise ValueError(f"The schedule {name!r}: {error}") from error
    return schedule


def _policy(
    name: str, schedule: Schedule, recompute: str | Sequence[int] | None
) -> str | None:
    """The policy to apply to a schedule; None: it stays as it is."""
    if isinstance(recompute, str):
        return recompute
    if recompute is not None:
        return None if Kind.RECOMPUTE in schedule.kinds else "always"
    return None if _is_file(name) or name == "zero_bubble" else "always"


def _is_file(name: str) -> bool:
    return str(name).endswith(".csv")


def _check_arguments(
    name: str, num_devices: int, num_micro_batches: int, stages_per_device: int
) -> None:
    if not _is_file(name) and name not in SCHEDULE_NAMES:
        raise ValueError(
            f"A schedule must be one of {', '.join(map(repr, SCHEDULE_NAMES))}, or a "
            f"path ending in '.csv'; got {name!r}."
            + (did_you_mean(str(name), SCHEDULE_NAMES) or " Choose one of these.")
        )
    check_sizes(
        num_devices=num_devices,
        num_micro_batches=num_micro_batches,
        stages_per_device=stages_per_device,
    )
    if stages_per_device > 1 and name in (*_ONE_STAGE_A_DEVICE, "local"):
        raise ValueError(
            f"The schedule {name!r} has one stage a device; got stages_per_device="
            f"{stages_per_device}. For several use 'interleaved'."
        )


def _from_file(
    path: str, num_devices: int, num_stages: int, num_micro_batches: int
) -> Schedule:
    try:
        schedule = read_csv(path)
    except OSError as error:
        raise ValueError(
            f"A schedule's file must be readable; {os.fspath(path)!r} is not: "
            f"{error.strerror}. Give the path of a file that is there, from "
            f"{os.getcwd()!r} or from the root."
        ) from error
    its_own = _sizes(
        schedule.num_devices, schedule.num_stages, schedule.num_micro_batches
    )
    wanted = _sizes(num_devices, num_stages, num_micro_batches)
    if its_own != wanted:
        raise ValueError(
            f"The schedule {path!r} is for {its_own}, but is to run with {wanted}: "
            "change the one or the other."
        )
    if not schedule.has_backward:
        raise ValueError(f"The schedule {path!r} has no backward passes to train with.")
    return schedule


def _sizes(num_devices: int, num_stages: int, num_micro_batches: int) -> str:
    return (
        f"{num_devices} devices, {num_stages} stages and {num_micro_batches} "
        "micro-batches"
    )
