"""Zero-bubble 1F1B within 1F1B's memory (ZB-H1 of arXiv 2401.10241). Pure.

For 3 stages and 4 micro-batches. W computes the gradients of the weights; B computes
the gradients of the inputs, and the neighbor waits only for B:

    device 2 |       F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
    device 1 |    F0 F1    B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    device 0 | F0 F1 F2       B0 W0 F3 B1 W1 B2 W2 B3 W3

Weight gradients fill the time that 1F1B leaves idle while it drains. With M >= K and F,
B and W of equal costs, a bubble of K - 1 operations remains: a third of 1F1B's, which
is (K - 1)·(F + B + W). A device stashes at most min(M, K) micro-batches, like 1F1B's
first device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def zero_bubble(num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns 1F1B with separate weight gradients, one stage per device."""
    # Device k of 1F1B stashes K - k micro-batches, so k more fit.
    combined = one_f_one_b(num_stages, num_micro_batches).columns
    columns = map(_with_weight_gradients, combined, range(num_stages))
    return Schedule(num_stages, num_micro_batches, tuple(map(tuple, columns)))


def _with_weight_gradients(column: tuple[Op, ...], num_waiting: int) -> Iterator[Op]:
    """Adds weight gradients, each `num_waiting` backward passes after its own."""
    waiting: deque[Op] = deque()
    for op in column:
        yield op
        if op.kind is Kind.BACKWARD:
            waiting.append(op._replace(kind=Kind.WEIGHT_GRADIENT))
            if len(waiting) > num_waiting:
                yield waiting.popleft()
    yield from waiting
