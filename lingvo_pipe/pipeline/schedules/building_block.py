"""V-Min and V-Half: schedules that repeat a building block (arXiv 2405.15362).

A device has two stages, in the shape of a V: the first K stages go up the devices, the
others down again. F, B and W are operations of a device's first stage, f, b and w of
its second. A building block gives each operation of one micro-batch a slot. All slots
are equally long. V-Min's block for four devices:

    device 3 |       F f             b B w W
    device 2 |     F     f         b   w B   W
    device 1 |   F         f     b w       B     W
    device 0 | F             f b   w         B   W

V-Half's block for three devices, where f and B take two slots per device:

    device 2 |     F f             b w B W
    device 1 |   F       f       b     w   B   W
    device 0 | F             f b w             B W

The block is repeated every six slots, because a device has six operations per
micro-batch. So the slots of a device differ modulo 6. A device stashes a micro-batch
from F to W and from f to w. These two lifetimes together, in units of six slots, are
the number of stashed micro-batches, summed over the device's stages.

At both ends the repeated blocks leave slots idle. So operations move to earlier slots.
In each slot, a device runs the first of its passes, in the blocks' order, that is
ready. Forward passes keep their order, and wait until the device may stash another
micro-batch. If no pass can run, the oldest weight gradients are computed.

The devices never get stuck. Of all operations that have not run, take the first in the
blocks. All its inputs are there. If it is a forward pass, its device stashes no more
than in the blocks, so there is room.
"""

from collections import deque
from collections.abc import Sequence

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.ticks import Ticks, tick_by_tick, v_shape

_SLOTS_PER_MICRO_BATCH = 6


def v_min(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns V-Min, which stashes about a third of what 1F1B stashes.

        device 2 |       F0 f0             F1 f1 b0 B0 w0 W0 b1 B1 w1 W1
        device 1 |    F0       f0       F1 b0 w0 f1    B0 b1 W0 w1 B1 W1
        device 0 | F0             f0 F1 b0 w0       f1 b1 B0 w1 W0    B1 W1

    A device stashes at most 2·⌊(K + 4) / 3⌋ micro-batches, summed over its stages,
    which are half as large as 1F1B's. With F, B and W of equal costs and K > 1, the
    bubble is 4·K - 5 operations of a stage. 1F1B's is 6·(K - 1) of them.
    """
    # Otherwise F and b would have the same slots modulo 6.
    idle = 0 if num_devices % 3 else 2
    block = _block(num_devices, (1, 1, 1, 1), (0, 0, idle, 0))
    return _squeezed(block, num_micro_batches, 2 * ((num_devices + 4) // 3))


def v_half(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns V-Half, which stashes about half of what 1F1B stashes.

        device 2 |       F0 f0       F1 f1 b0 B0 w0 F2 W0 f2 b1 B1 w1 W1 b2 B2 w2 W2
        device 1 |    F0       f0 F1    b0 f1 w0 F2 B0 b1 W0 f2 w1 B1 b2 W1 w2 B2 W2
        device 0 | F0 F1          f0 b0 F2 w0 f1 b1 w1 B0 W0    f2 b2 B1 w2 W1    B2 W2

    A device stashes at most 2·⌊(K + 2) / 2⌋ micro-batches, summed over its stages,
    which are half as large as 1F1B's. With F, B and W of equal costs and M >= K, the
    bubble is about 3·(K - 1) operations of a stage. 1F1B's is 6·(K - 1) of them.
    """
    # Modulo 3, F, b and f have different slots. B has f's slot, but not modulo 6.
    idle = 0 if num_devices % 2 else 3
    block = _block(num_devices, (1, 2, 1, 2), (0, 0, idle, 1))
    return _squeezed(block, num_micro_batches, 2 * ((num_devices + 2) // 2))


def _block(
    num_devices: int, steps: Sequence[int], idle_slots: Sequence[int]
) -> list[list[int]]:
    """Returns the slots of F, f, b and B on each device, in a block.

    For each of them, `steps` has the number of slots from one device to the next, and
    `idle_slots` the number of slots that its first device waits before it.
    """
    block: list[list[int]] = [[] for _ in range(num_devices)]
    up, down = block, block[::-1]
    first_slot = 0
    for devices, step, idle in zip((up, down) * 2, steps, idle_slots, strict=True):
        first_slot += idle
        for distance, slots in enumerate(devices):
            slots.append(first_slot + step * distance)
        first_slot += step * (num_devices - 1) + 1
    return block


def _squeezed(
    block: Sequence[Sequence[int]], num_micro_batches: int, max_stashed: int
) -> Schedule:
    """Returns the schedule that runs the repeated blocks as early as possible.

    In the blocks, a device stashes up to `max_stashed` micro-batches over its stages.
    """
    placement = v_shape(len(block))
    weight_gradients: list[deque[Op]] = [deque() for _ in block]

    def rule(ticks: Ticks, device: int) -> Op | None:
        waiting = weight_gradients[device]
        op = _next_pass(ticks, placement[device], block[device], max_stashed)
        if op is None:
            return waiting.popleft() if waiting else None
        if op.kind is Kind.BACKWARD:
            waiting.append(op._replace(kind=Kind.WEIGHT_GRADIENT))
        return op

    return tick_by_tick(placement, num_micro_batches, rule)


def _next_pass(
    ticks: Ticks, stages: Sequence[int], slots: Sequence[int], max_stashed: int
) -> Op | None:
    """Returns the first of a device's passes, in the blocks' order, that can run."""
    first, second = stages
    forward, backward = Kind.FORWARD, Kind.BACKWARD
    passes = (forward, first), (forward, second), (backward, second), (backward, first)
    # No two slots of a device are equal.
    next_slots = {
        (kind, stage): slot + _SLOTS_PER_MICRO_BATCH * ticks.done[kind][stage]
        for (kind, stage), slot in zip(passes, slots, strict=True)
    }
    may_stash = ticks.num_stashed(stages) < max_stashed
    for kind, stage in sorted(passes, key=next_slots.__getitem__):
        op = ticks.ready(kind, stage)
        if op and (may_stash or kind is backward):
            return op
        if kind is forward and ticks.done[kind][stage] < ticks.num_micro_batches:
            may_stash = False  # Forward passes keep their order.
    return None
