"""Zero-bubble schedules with several stages per device.

Two of them are made greedily, tick by tick. In each tick, a device runs the first of
these operations that is ready:

1. the backward pass of its earliest stage, because other devices wait for it;
2. the forward pass of its latest stage, if it may stash another micro-batch;
3. the weight gradients of its earliest stage, to free their stash.

In the pictures F, B and W are a device's first stage, f, b and w its second.
"""

import itertools
from collections import deque
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.by_rule import zero_bubble
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.ticks import Ticks, tick_by_tick, v_shape


def zero_bubble_v(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns ZB-V (arXiv 2401.10241, 6): two stages per device, in the shape of a V.

    The first K stages go up the devices, the others down again, so the first device
    also has the last stage:

        device 1 |    F0 f0 F1 f1 b0 B0 W0 F2 b1 B1 W1 f2 w0 w1 b2 B2 W2 w2
        device 0 | F0 F1 F2 f0 b0 w0 f1 B0 b1 W0 w1 B1 W1 f2 b2 w2    B2 W2

    With F, B and W of equal costs and M >= 2·K, the bubble is K - 1 operations, while
    the pipeline fills, or a few more. 1F1B's bubble is 3·(K - 1) operations of twice
    the length. A stage is half as large as one of 1F1B, so the stash of at most 2·K
    micro-batches on a device is as large as 1F1B's.
    """
    return _greedy(v_shape(num_devices), num_micro_batches, 2 * num_devices)


def interleaved_zero_bubble(
    num_devices: int, num_micro_batches: int, stages_per_device: int
) -> Schedule:
    """Returns a zero-bubble schedule with the stages and memory of `interleaved`.

    Stage s is on device s mod `num_devices`. For 2 devices with 2 stages each:

        device 1 |    F0 F1 f0 b0 f1 B0 b1 F2 B1 W0 f2 b2 W1 B2 W2 w0 w1 w2
        device 0 | F0 F1 f0 f1 F2 b0 w0 B0 b1 f2 B1 W0 W1 b2 w1 B2 W2 w2

    With F, B and W of equal costs and M >= 2·K, the bubble is K - 1 operations of one
    stage, or a few more.
    """
    if stages_per_device == 1:
        return zero_bubble(num_devices, num_micro_batches)
    num_stages = num_devices * stages_per_device
    placement = [range(k, num_stages, num_devices) for k in range(num_devices)]
    # As many as the first device of `interleaved` stashes.
    max_stashed = (stages_per_device + 1) * num_devices - 1
    return _greedy(placement, num_micro_batches, max_stashed)


def dualpipe_v(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns DualPipe-V, the half of DeepSeek's DualPipe (arXiv 2412.19437, 3.2.1).

    Stages are placed as in ZB-V. Once the pipeline is full, a device alternates the
    forward pass of one of its stages with the whole backward pass of the other. So it
    can send the results of one pass while it computes the next. A device stashes at
    most 2·K + 1 micro-batches of a stage. Fewer than 2·K micro-batches run like the
    first ones of 2·K:

        1 |    F0 f0 F1 f1 F2 b0 w0 f2 B0 W0 F3 b1 w1 f3 B1 W1 b2 w2 B2 W2 b3 B3 w3 W3
        0 | F0 F1 F2 f0 b0 w0 f1 F3 b1 w1 f2 B0 W0 b2 w2 f3 B1 W1 b3 w3 B2 W2    B3 W3

    """
    number = max(num_micro_batches, 2 * num_devices)
    columns = tuple(
        tuple(
            op
            for op in _dualpipe_column(stages, num_devices, number)
            if op.micro_batch < num_micro_batches
        )
        for stages in v_shape(num_devices)
    )
    return Schedule(2 * num_devices, num_micro_batches, columns)


def _dualpipe_column(
    stages: Sequence[int], num_devices: int, num_micro_batches: int
) -> list[Op]:
    device = stages[0]
    later, half = num_devices - 1 - device, (device + 1) // 2
    # The letters are as in the pictures. W takes the oldest weight gradients that
    # wait, and `b+` means `b W`.
    phases = [
        ("F", 2 * later),
        ("F f", device + 1),
        ("b W f", later),
        ("F b+ f B+", num_micro_batches - num_devices - later),
        ("b+ f B+", later),
        ("b+ B+", half),
        ("b+ B", device + 1 - 2 * half),
        ("b B", half),
        ("W B", later),
        ("W", device + 1),
    ]
    numbers = {kind: itertools.count() for kind in "FfBb"}
    waiting: deque[Op] = deque()
    column: list[Op] = []
    names = [x for names, times in phases for x in names.split() * times]
    for name in names:
        if name != "W":
            kind = name[0]
            op = Op(Kind(kind.upper()), next(numbers[kind]), stages[kind.islower()])
            column.append(op)
            if op.kind is Kind.BACKWARD:
                waiting.append(op._replace(kind=Kind.WEIGHT_GRADIENT))
        if name == "W" or name.endswith("+"):
            column.append(waiting.popleft())
    return column


def _greedy(
    placement: Sequence[Sequence[int]], num_micro_batches: int, max_stashed: int
) -> Schedule:
    """Returns the schedule that the rules at the top of this file make.

    A device's stages in `placement` are ascending. A device may stash `max_stashed`
    micro-batches, summed over its stages, and at least one for each stage.
    """

    def rule(ticks: Ticks, device: int) -> Op | None:
        stages = placement[device]
        for stage in stages:
            if op := ticks.ready(Kind.BACKWARD, stage):
                return op
        room = max_stashed - ticks.num_stashed(stages)
        for stage in reversed(stages):
            op = ticks.ready(Kind.FORWARD, stage)
            if op and room > 0:
                return op
            # Earlier stages leave room for one micro-batch of this stage.
            forward, _, weights = ticks.done.values()
            room -= forward[stage] == weights[stage]
        waiting = (ticks.ready(Kind.WEIGHT_GRADIENT, stage) for stage in stages)
        return next(filter(None, waiting), None)

    return tick_by_tick(placement, num_micro_batches, rule)
