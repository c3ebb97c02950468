"""The role of each cell's residuals: stashed, recomputed or offloaded."""

import itertools
import math
import numbers
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.schedules.by_name import recomputes_by_default
from lingvo_pipe.pipeline.schedules.offload import roles_in_stage, stage_kinds
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


class CellRoles(NamedTuple):
    """The roles of the cells that the params `recompute` and `offload` define."""

    recompute: str | Sequence[int] | None  # For `make_schedule`.
    offload: str | Sequence[int] | None  # For `make_schedule`.
    recomputed: Sequence[bool]  # By cell: True if recomputed where stages recompute.
    offloaded: Sequence[bool]  # By cell: True if offloaded where stages offload.


def cell_roles(p: InstantiableParams, path: str) -> CellRoles:
    """Returns the roles of the cells that the params `p` define.

    If `recompute` is None, cells that `offload` lists are not recomputed, and with
    `offload` 'always' only stages that offload nothing recompute. A share is taken of
    the cells that `recompute` does not list.

    Raises:
        ValueError: if a cell would be recomputed and offloaded.
    """
    cells, recompute, offload = range(len(p.cell_tpl)), p.recompute, p.offload
    recomputed = recompute if isinstance(recompute, (list, tuple)) else cells
    if isinstance(offload, numbers.Real):
        listed = () if recomputed is cells else recomputed
        others = [i for i in cells if i not in listed]
        offload = evenly_spread(others, float(offload))
    offloaded = offload if isinstance(offload, (list, tuple)) else cells
    if isinstance(offload, (list, tuple)) and recompute is None:
        recomputed = [i for i in cells if i not in offloaded]
        if recomputes_by_default(p.schedule):
            recompute = recomputed or "never"
    contradictory = [i for i in cells if i in offloaded and i in recomputed]
    if offload is not None and recompute not in (None, "never") and contradictory:
        raise UserValueError(
            path=f"{path}.offload",
            expected="cells that are not recomputed",
            got=Words(f"cells {contradictory}, with recompute={recompute!r}"),
            hint="Leave recompute None: it then recomputes only the other cells.",
        )
    return CellRoles(
        recompute,
        offload,
        [i in recomputed for i in cells],
        [i in offloaded for i in cells],
    )


def evenly_spread(cells: Sequence[int], share: float) -> list[int]:
    """Returns a share of the cells, spread evenly from the first cell on.

    Any n consecutive cells have n · `share` of them, rounded up or down. So each stage
    offloads its share, wherever the stage begins and ends.
    """
    exact = Fraction(str(share))
    ends = [math.ceil(i * exact) for i in range(len(cells) + 1)]
    return [
        cell
        for cell, pair in zip(cells, itertools.pairwise(ends), strict=True)
        if pair[0] < pair[1]
    ]


def check_offloads(
    schedule: Schedule,
    recomputed: Sequence[bool],
    offloaded: Sequence[bool],
    devices: Sequence[str],
    path: str,
) -> None:
    """Raises ValueError if a stage that offloads has no offloaded cell, or on TPUs."""
    if Kind.OFFLOAD not in schedule.kinds:
        return
    if tpus := [device for device in devices if must_compile(device)]:
        raise UserValueError(
            path=f"{path}.offload",
            expected="None on TPUs, whose loops run on the host",
            got=Words(", ".join(tpus)),
        )
    away = [
        roles_in_stage(kinds, recomputed, offloaded)[1]
        for kinds in stage_kinds(schedule)
        if Kind.OFFLOAD in kinds
    ]
    if not all(map(any, away)):
        raise UserValueError(
            path=f"{path}.offload",
            expected="cells that are not recomputed, for a schedule that offloads",
            got=Words("none"),
            hint="List the cells, or set recompute.",
        )


def warn_of_offload(
    p: InstantiableParams,
    path: str,
    schedule: Schedule,
    boundaries: Sequence[int],
    offloaded: Sequence[bool],
) -> None:
    """Logs the stages in which `offload` copies nothing, or may take more memory."""
    if p.offload is None:
        return
    log, kinds = tf.get_logger(), stage_kinds(schedule)
    listed = [
        stage
        for stage, (start, end) in enumerate(itertools.pairwise([0, *boundaries]))
        if any(offloaded[start:end])
    ]
    if idle := [stage for stage in listed if Kind.OFFLOAD not in kinds[stage]]:
        text = (
            "%s.offload: stages %s offload nothing, because each backward pass comes "
            "within three operations of its forward pass: %s."
        )
        # Cells that `offload` lists are never recomputed.
        may_recompute = p.offload == "always"
        again = [x for x in idle if may_recompute and Kind.RECOMPUTE in kinds[x]]
        stash = [x for x in idle if x not in again]
        roles = (again, "recompute"), (stash, "stash their activations")
        named = ", ".join(f"stages {x} {role}" for x, role in roles if x)
        log.warning(text, path, idle, named)
    busy = [stage for stage in listed if Kind.OFFLOAD in kinds[stage]]
    if busy and p.recompute is None and recomputes_by_default(p.schedule):
        text = (
            "%s.offload: stages %s offload in place of recomputing, which may take "
            "more memory: up to %d micro-batches are whole on a device, instead of "
            "one and the inputs of the others. PeakBytes returns what is needed."
        )
        log.warning(text, path, busy, max(map(_most_whole, schedule.columns)))


def _most_whole(column: Sequence[Op]) -> int:
    """Returns the most micro-batches that a device stashes in full at one time."""
    micro_batches, most = set(), 0
    for op in column:
        if op.kind in (Kind.FORWARD, Kind.LOAD):
            micro_batches.add(op[1:])
        elif op.kind in (Kind.OFFLOAD, Kind.BACKWARD):
            micro_batches.discard(op[1:])
        most = max(most, len(micro_batches))
    return most
