r"""1F1B: a device starts the backward passes as soon as it can. Pure.

For 3 stages and 4 micro-batches, time to the right, a backward as long as a forward:

    device 2 |       F0 B0 F1 B1 F2 B2 F3 B3
    device 1 |    F0 F1    B0 F2 B1 F3 B2    B3
    device 0 | F0 F1 F2       B0 F3 B1    B2    B3

The bubble is GPipe's, but device k keeps at most K - k micro-batches, however many
there are: it runs one forward for each backward once the pipeline is full. At the end
of the mini-batch it drains ("with flush"), so all passes see the same weights.
"""

from __future__ import annotations

from lingvo_pipe.pipeline.schedules.alternate import alternate
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.sizes import check_sizes


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Schedule:
    """One forward, one backward, with flush; a device a stage."""
    check_sizes(num_stages=num_stages, num_micro_batches=num_micro_batches)
    return Schedule(
        num_stages,
        num_micro_batches,
        tuple(
            one_forward_one_backward(stage, num_stages - 1 - stage, num_micro_batches)
            for stage in range(num_stages)
        ),
    )


def one_forward_one_backward(
    stage: int, num_warm_up: int, num_micro_batches: int
) -> tuple[Op, ...]:
    """The column of a stage that runs so many forward passes before it alternates."""
    forwards, backwards = (
        [Op(kind, m, stage) for m in range(num_micro_batches)]
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    return tuple(alternate(forwards, backwards, num_warm_up))
