"""The role of each cell's residuals: stashed, recomputed or offloaded."""

from collections.abc import Sequence
from typing import NamedTuple

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.stage_devices import must_compile
from lingvo_pipe.pipeline.schedules.by_name import recomputes_by_default
from lingvo_pipe.pipeline.schedules.offload import offloaded_cells
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule


class CellRoles(NamedTuple):
    """The roles of the cells that the params `recompute` and `offload` define."""

    recompute: str | Sequence[int] | None  # For `make_schedule`.
    recomputed: list[bool]  # Whether each cell is, if the schedule recomputes.
    offloaded: list[bool]  # Whether each cell is, if the schedule offloads.


def cell_roles(p: InstantiableParams, path: str) -> CellRoles:
    """Returns the roles. If `recompute` is None, offloaded cells are not recomputed.

    Raises:
        ValueError: if a cell would be recomputed and offloaded.
    """
    cells, recompute = range(len(p.cell_tpl)), p.recompute
    offloaded = p.offload if isinstance(p.offload, (list, tuple)) else cells
    recomputed = recompute if isinstance(recompute, (list, tuple)) else cells
    if p.offload is not None and recompute is None:
        recomputed = [i for i in cells if i not in offloaded]
        if recomputes_by_default(p.schedule):
            recompute = recomputed or "never"
    both = [i for i in cells if i in offloaded and i in recomputed]
    if p.offload is not None and recompute != "never" and both:
        raise UserValueError(
            path=f"{path}.offload",
            expected="cells that are not recomputed",
            got=Words(f"cells {both}, with recompute={recompute!r}"),
            hint="Leave recompute None: it then recomputes only the other cells.",
        )
    return CellRoles(
        recompute, [i in recomputed for i in cells], [i in offloaded for i in cells]
    )


def check_offloads(
    schedule: Schedule,
    recomputed: Sequence[bool],
    offloaded: Sequence[bool],
    devices: Sequence[str],
    path: str,
) -> None:
    """Raises ValueError if a schedule offloads, but no cell of the pipeline can be."""
    if Kind.OFFLOAD not in schedule.kinds:
        return
    if tpus := [device for device in devices if must_compile(device)]:
        raise UserValueError(
            path=f"{path}.offload",
            expected="None on TPUs, whose loops run on the host",
            got=Words(", ".join(tpus)),
        )
    if not any(offloaded_cells(schedule.kinds, recomputed, offloaded)):
        raise UserValueError(
            path=f"{path}.offload",
            expected="cells that are not recomputed, for a schedule that offloads",
            got=Words("none"),
            hint="List the cells, or set recompute.",
        )
