r"""GPipe: all forward passes, then all backward passes (arXiv 1811.06965, 2.2). Pure.

For 3 stages and 4 micro-batches; time runs to the right:

    device 2 |       F0 F1 F2 F3 B0 B1 B2 B3
    device 1 |    F0 F1 F2 F3       B0 B1 B2 B3
    device 0 | F0 F1 F2 F3             B0 B1 B2 B3

The bubble: while the pipeline fills and drains, a device is idle for K - 1 forward and
K - 1 backward passes. It stashes all M micro-batches at once; with recomputation, only
the inputs of its stage.
"""

from __future__ import annotations

from lingvo_pipe.pipeline.schedules.one_f_one_b import alternating
from lingvo_pipe.pipeline.schedules.schedule import Schedule


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns GPipe's schedule, one stage per device."""
    return alternating(num_stages, num_micro_batches, lambda _: num_micro_batches)
