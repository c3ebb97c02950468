r"""Several steps in one schedule: each stage changes its weights when it can. Pure.

For 3 blocks of a stage each and one micro-batch a step, time to the right:

    device 2 |       F0 B0 U0 F1 B1 U1 F2 B2 U2
    device 1 |    F0 B0 U0 F1 B1 U1 F2 B2 U2
    device 0 | F0 B0 U0 F1 B1 U1 F2 B2 U2          U0: update after micro-batch 0

A stage begins the next step when it has made this one, whatever the others do. Where no
gradient comes back, block k works on a step while block k + 1 works on the one before:
there is no bubble once all have begun (Laskin et al. 2020, figure 2).

Messages queue in the order in which they were sent, and each forward pass of a stage
sees the weights after all the steps before its own. So the steps are those that all
stages would make together, one after another: nothing is stale, and results are the
same, byte for byte. A block that is faster than the next one waits when it is
MAX_STEPS_AHEAD steps ahead, or what it hands on would fill the memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.sizes import check_sizes


def several_steps(step: Schedule, num_steps: int) -> Schedule:
    """The schedule of consecutive steps, with an UPDATE of each stage after each.

    Args:
        step: of one step, with backward passes.
        num_steps: N.
    """
    check_sizes(num_steps=num_steps)
    columns = tuple(
        tuple(
            itertools.chain.from_iterable(
                _step(column, n * step.num_micro_batches, step.num_micro_batches)
                for n in range(num_steps)
            )
        )
        for column in step.columns
    )
    return dataclasses.replace(
        step,
        num_micro_batches=num_steps * step.num_micro_batches,
        columns=columns,
    )


def _step(column: tuple[Op, ...], first: int, num: int) -> Iterator[Op]:
    """A device's operations in a step of `num` micro-batches from `first` on.

    Each of its stages is updated as soon as its gradients are whole.
    """
    ends = {op.stage: i for i, op in enumerate(column)}
    for i, op in enumerate(column):
        yield op._replace(micro_batch=op.micro_batch + first)
        if ends[op.stage] == i:
            yield Op(Kind.UPDATE, first + num - 1, op.stage)
