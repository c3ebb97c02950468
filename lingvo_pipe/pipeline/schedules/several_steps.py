r"""Several steps in one schedule: each stage updates as soon as it can.

3 blocks of one stage each, with one micro-batch per step (time runs to the right):

    device 2 |       F0 B0 U0 F1 B1 U1 F2 B2 U2
    device 1 |    F0 B0 U0 F1 B1 U1 F2 B2 U2
    device 0 | F0 B0 U0 F1 B1 U1 F2 B2 U2          U0: update after micro-batch 0

A stage starts its next step when it has finished a step, without waiting for others.
No gradient goes from one block to another, so block k works on a step while block k + 1
works on the previous step. After the first step there is no bubble (Laskin et al. 2020,
figure 2).

Channels deliver messages in the order sent, and each forward pass of a stage sees the
weights after all earlier steps. So nothing is stale: the results are the same as with
separate steps, byte for byte. A block that is faster than the next one waits when it is
MAX_STEPS_AHEAD steps ahead. Otherwise its activations would fill the memory.
"""

import dataclasses
from collections.abc import Iterator

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def several_steps(step: Schedule, num_steps: int) -> Schedule:
    """Repeats a one-step schedule `num_steps` times, with UPDATEs after each step."""
    num = step.num_micro_batches
    columns = tuple(
        tuple(
            op._replace(micro_batch=op.micro_batch + n * num)
            for n in range(num_steps)
            for op in _with_updates(column, num - 1)
        )
        for column in step.columns
    )
    return dataclasses.replace(step, num_micro_batches=num_steps * num, columns=columns)


def _with_updates(column: tuple[Op, ...], last: int) -> Iterator[Op]:
    last_ops = {op.stage: op for op in column}
    for op in column:
        yield op
        if last_ops[op.stage] is op:
            yield Op(Kind.UPDATE, last, op.stage)
