"""Check of a schedule that a caller gives in place of the pipeline's own."""

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.pipeline.cell_roles import check_offloads
from lingvo_pipe.pipeline.execution.pipeline_spec import Layout
from lingvo_pipe.pipeline.pipelining_rules import problems_of
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import Schedule


def checked_schedule(given: Schedule | None, layout: Layout, path: str) -> Schedule:
    """Returns the schedule `given`, or the layout's schedule if `given` is None.

    Raises:
        ValueError: if the schedule can't finish, has no backward passes, or is made for
            other stages, devices or micro-batches.
    """
    name = f"{path}.schedule"
    if given is None:
        return layout.schedule
    if not isinstance(given, Schedule):
        raise UserValueError(
            path=name,
            expected="a Schedule, or None for the layer's own",
            got=given,
            hint="Use make_schedule for one by its name.",
        )
    with problems_of("schedule", path):
        check(given)
    if not given.has_backward:
        raise UserValueError(
            path=name,
            expected="a schedule with backward passes",
            got=Words("none"),
            hint="Use ComputeMetrics.",
        )
    sizes, expected = (
        (x.num_micro_batches, x.device_of_stage()) for x in (given, layout.schedule)
    )
    if sizes != expected:
        text = "{} micro-batches, by stage devices {}".format
        raise UserValueError(
            path=name, expected=text(*expected), got=Words(text(*sizes))
        )
    check_offloads(given, layout.recomputed, layout.offloaded, layout.devices, path)
    return given
