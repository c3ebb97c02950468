"""Check of a schedule that a caller gives in place of the pipeline's own."""

import dataclasses

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.cell_roles import check_offloads
from lingvo_pipe.pipeline.execution.pipeline_spec import Layout
from lingvo_pipe.pipeline.pipelining_rules import problems_of
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Kind, Schedule


def checked_schedule(
    given: Schedule | None, layout: Layout, path: str, do_eval: bool = False
) -> Schedule:
    """Returns the schedule `given`, or the layout's schedule if `given` is None.

    `do_eval` is True in evaluation, where gradients cross blocks.

    Raises:
        ValueError: if the schedule can't finish, or is not for one step of the layout.
    """
    name = f"{path}.schedule"
    layout_schedule = layout.across_blocks if do_eval else layout.schedule
    if given is None:
        return layout_schedule
    if not isinstance(given, Schedule):
        raise UserValueError(
            path=name,
            expected="a Schedule, or None for the layer's own",
            got=given,
            hint="Use make_schedule for one by its name.",
        )
    sizes, expected = (
        (x.num_micro_batches, x.device_of_stage()) for x in (given, layout_schedule)
    )
    if sizes != expected:
        text = "{} micro-batches, by stage devices {}".format
        raise UserValueError(
            path=name, expected=text(*expected), got=Words(text(*sizes))
        )
    # The model decides where gradients cross. With other blocks the loops would hang.
    blocks = layout_schedule.block_boundaries
    given = dataclasses.replace(given, block_boundaries=blocks)
    with problems_of("schedule", path):
        check(given)
    if not given.has_backward:
        raise UserValueError(
            path=name,
            expected="a schedule with backward passes",
            got=Words("none"),
            hint="Use ComputeMetrics.",
        )
    if Kind.UPDATE in given.kinds:
        raise UserValueError(
            path=name,
            expected="a schedule of one step, without updates",
            got=Words(f"{given.num_steps} steps"),
        )
    check_offloads(given, layout.recomputed, layout.offloaded, layout.devices, path)
    return given
