r"""GPipe: all forward passes, then all backward passes (arXiv 1811.06965, 2.2). Pure.

For 3 stages and 4 micro-batches; time runs to the right:

    device 2 |       F0 F1 F2 F3 B0 B1 B2 B3
    device 1 |    F0 F1 F2 F3       B0 B1 B2 B3
    device 0 | F0 F1 F2 F3             B0 B1 B2 B3

While the pipeline fills and drains, a device is idle for K - 1 forward passes and as
many backward passes: the bubble. It keeps something of all M micro-batches at once;
with recomputation that is the inputs of its stage alone.
"""

from __future__ import annotations

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.sizes import check_sizes


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes; a device a stage."""
    check_sizes(num_stages=num_stages, num_micro_batches=num_micro_batches)
    columns = tuple(
        tuple(
            Op(kind, m, stage)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for m in range(num_micro_batches)
        )
        for stage in range(num_stages)
    )
    return Schedule(num_stages, num_micro_batches, columns)
