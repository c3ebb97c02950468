"""The devices of an elastic job: those that are left, and how the model is cut on them.

R replicas of K devices --some are lost--> fewer replicas of K devices,
                                           or one replica of fewer devices
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.device_choice import TaskDevices, choose_devices
from lingvo_pipe.pipeline.devices.device_names import DeviceName
from lingvo_pipe.pipeline.pipelining_rules import count_batch_shards
from lingvo_pipe.pipeline.splitting.partitioning import is_auto
from lingvo_pipe.planner.measured.resolve_auto import extract_auto

_PATH = "task.pipeline"


class Cut(NamedTuple):
    """A number of replicas, and the number of devices of each."""

    replicas: int
    per_replica: int

    @property
    def num_devices(self) -> int:
        """The number of devices that are used."""
        return self.replicas * self.per_replica


def cut_for(number: int, before: Cut, num_batch_shards: int) -> Cut:
    """Returns the cut for `number` devices, which are fewer than in `before`.

    Replicas are given up before stages grow: each replica keeps its number of devices
    if there are enough for one. The number of replicas divides `num_batch_shards`.
    """
    replicas = max(
        r
        for r in range(1, before.replicas + 1)
        if num_batch_shards % r == 0 and (r == 1 or number // r >= before.per_replica)
    )
    return Cut(replicas, min(before.per_replica, number // replicas))


def check_elastic(pipeline: InstantiableParams) -> None:
    """Raises ValueError if fewer devices cannot run a model, or change its bytes.

    `pipeline` has the model's own params. Numbers of slices and of micro-batches change
    bytes, and if they are `auto`, they depend on the devices.
    """
    auto = sorted(extract_auto(pipeline.Copy()))
    problems = {
        "splits": (isinstance(pipeline.splits, (list, tuple)), "a number, or 'auto'"),
        "devices": (pipeline.devices is not None, "None; use the flag --devices"),
        "schedule": (str(pipeline.schedule).endswith(".csv"), "a schedule's name"),
        "slices": (is_auto(pipeline.slices), "None or the numbers of slices"),
        "num_micro_batches": (is_auto(pipeline.num_micro_batches), "a number"),
        "num_replicas": (
            bool(auto) and pipeline.num_replicas != 1,
            f"1, since {' and '.join(auto)} is auto",
        ),
    }
    for name, (is_wrong, expected) in problems.items():
        if is_wrong:
            raise UserValueError(
                path=f"{_PATH}.{name}",
                expected=f"{expected}, with --elastic",
                got=pipeline.Get(name),
                hint="Change it, or leave --elastic out.",
            )


def set_cut(pipeline: InstantiableParams, cut: Cut) -> None:
    """Sets the replicas, and lets the memory limit choose the stages if there is one.

    The number of batch shards stays, so the bytes of results do.
    """
    if pipeline.num_replicas > 1:
        pipeline.num_batch_shards = count_batch_shards(pipeline, _PATH)
        pipeline.num_replicas = cut.replicas
    if pipeline.memory_limit is not None:
        pipeline.splits = "auto"


def first_devices(
    number: int, tasks: Sequence[TaskDevices], fits: Callable[[DeviceName], bool]
) -> list[str]:
    """Returns up to `number` devices that fit, by full names (see `choose_devices`)."""
    total = sum(t.num_gpus for t in tasks) or sum(t.num_cpus for t in tasks)
    names: list[str] = []
    for size in range(min(number, total), total + 1):
        names = [name.full for name in choose_devices(size, tasks) if fits(name)]
        if len(names) == number:
            break
    return names


def cpu_share(number: int, position: int, num_tasks: int) -> int:
    """Returns a task's share of `number` CPU devices, which tasks lend in turn."""
    return (number + num_tasks - 1 - position) // num_tasks


def check_min_devices(min_devices: int, number: int) -> None:
    """Raises ValueError if a job can never have `min_devices` devices."""
    if min_devices > number:
        raise UserValueError(
            path="--min_devices",
            expected=f"at most the job's {number} devices",
            got=Words(min_devices),
            hint="Lower it, or raise --devices.",
        )
