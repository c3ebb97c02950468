r"""Schedules made by rule: GPipe, 1F1B, zero bubble, local losses, interleaved.

In the pictures, time runs to the right. A backward pass is as long as a forward pass.
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns GPipe's schedule (arXiv 1811.06965, 2.2), with one stage per device.

    All forward passes come before all backward passes:

        device 2 |       F0 F1 F2 F3 B0 B1 B2 B3
        device 1 |    F0 F1 F2 F3       B0 B1 B2 B3
        device 0 | F0 F1 F2 F3             B0 B1 B2 B3

    The bubble: while the pipeline fills and drains, a device is idle for K - 1 forward
    and K - 1 backward passes. A device stashes all M micro-batches at once. With
    recomputation, it stashes only the inputs of its stage.
    """
    return _alternating(num_stages, num_micro_batches, lambda _: num_micro_batches)


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns 1F1B with flush (arXiv 2006.09503), with one stage per device.

        device 2 |       F0 B0 F1 B1 F2 B2 F3 B3
        device 1 |    F0 F1    B0 F2 B1 F3 B2    B3
        device 0 | F0 F1 F2       B0 F3 B1    B2    B3

    The bubble is GPipe's, but device k stashes at most K - k micro-batches, whatever M
    is, because it runs one forward for each backward once the pipeline is full. At the
    end of the mini-batch the pipeline drains ("with flush"), so all passes see the same
    weights.
    """
    return _alternating(
        num_stages, num_micro_batches, lambda stage: num_stages - 1 - stage
    )


def zero_bubble(num_stages: int, num_micro_batches: int) -> Schedule:
    """Returns zero-bubble 1F1B within 1F1B's memory (ZB-H1 of arXiv 2401.10241).

    It has one stage per device. W computes the gradients of the weights. B computes the
    gradients of the inputs, and the neighbor waits only for B:

        device 2 |       F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3
        device 1 |    F0 F1    B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
        device 0 | F0 F1 F2       B0 W0 F3 B1 W1 B2 W2 B3 W3

    Weight gradients fill the time that 1F1B leaves idle while it drains. With M >= K
    and F, B and W of equal costs, a bubble of K - 1 operations remains: a third of
    1F1B's, which is (K - 1)·(F + B + W). A device stashes at most min(M, K)
    micro-batches, like 1F1B's first device.
    """
    # Device k of 1F1B stashes K - k micro-batches, so k more fit.
    combined = one_f_one_b(num_stages, num_micro_batches).columns
    columns = map(_with_weight_gradients, combined, range(num_stages))
    return Schedule(num_stages, num_micro_batches, tuple(map(tuple, columns)))


def _with_weight_gradients(column: tuple[Op, ...], num_waiting: int) -> Iterator[Op]:
    """Yields a column in which weight gradients wait for `num_waiting` backwards."""
    waiting: deque[Op] = deque()
    for op in column:
        yield op
        if op.kind is Kind.BACKWARD:
            waiting.append(op._replace(kind=Kind.WEIGHT_GRADIENT))
            if len(waiting) > num_waiting:
                yield waiting.popleft()
    yield from waiting


def local(
    num_stages: int, num_micro_batches: int, block_boundaries: Collection[int] = ()
) -> Schedule:
    """Returns a schedule of blocks, each trained by a loss of its own.

    Within a block, stages run 1F1B, one per device. Without `block_boundaries` (see
    `Schedule`), the model is one block. For 3 blocks of one stage each:

        device 2 |       F0 B0 F1 B1 F2 B2 F3 B3
        device 1 |    F0 B0 F1 B1 F2 B2 F3 B3
        device 0 | F0 B0 F1 B1 F2 B2 F3 B3

    No gradient crosses from a block to the previous one (Laskin et al. 2020, figure 2),
    so no block waits for another's backward pass. Here each device stashes one
    micro-batch, and its bubble ends when the first activations arrive.
    """

    def num_later(stage: int) -> int:
        ends = (*block_boundaries, num_stages - 1)
        return min(end for end in ends if end >= stage) - stage

    schedule = _alternating(num_stages, num_micro_batches, num_later)
    return dataclasses.replace(schedule, block_boundaries=frozenset(block_boundaries))


def interleaved(
    num_devices: int, num_micro_batches: int, stages_per_device: int
) -> Schedule:
    """Returns interleaved 1F1B with flush (arXiv 2104.04473, 2.2).

    Stage s is on device s mod `num_devices`. For 2 devices with 2 stages each, where F
    and B are a device's first stage, f and b its second:

        device 1 |    F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3
        device 0 | F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1    b2    b3 B2 B3

    A micro-batch goes round the devices V times. The pipeline fills and drains in
    stages that are V times shorter, so the bubble is (K - 1) / (V·M) of the busy time:
    a V-th of 1F1B's, for M >= K. In return, devices stash and send more.

    A device takes the micro-batches in groups. It runs all of a group in its first
    stage, then all in its second, and so on. A group of at least K keeps the devices
    busy: its first micro-batch has come round before its last has left. So M is cut
    into as many groups of at least K as possible. Their sizes are almost equal, the
    larger first, because the first one sets the number of warm-up passes. Fewer than K
    micro-batches run like the first ones of a group of K.
    """
    if stages_per_device == 1:
        return one_f_one_b(num_devices, num_micro_batches)
    groups = _groups(max(num_devices, num_micro_batches), num_devices)
    num_stages = num_devices * stages_per_device

    def column(device: int) -> tuple[Op, ...]:
        stages = range(device, num_stages, num_devices)
        forwards, backwards = (
            [Op(kind, m, stage) for group in groups for stage in order for m in group]
            for kind, order in ((Kind.FORWARD, stages), (Kind.BACKWARD, stages[::-1]))
        )
        # A pass per earlier stage and micro-batch of the first group, then two per
        # later device: there and back.
        num_warm_up = (stages_per_device - 1) * len(groups[0])
        num_warm_up += 2 * (num_devices - 1 - device)
        ops = _alternate(forwards, backwards, num_warm_up)
        return tuple(op for op in ops if op.micro_batch < num_micro_batches)

    columns = tuple(map(column, range(num_devices)))
    return Schedule(num_stages, num_micro_batches, columns)


def _groups(num_micro_batches: int, min_size: int) -> list[range]:
    """Cuts micro-batches into as many groups as possible. Larger groups come first."""
    num_groups = num_micro_batches // min_size
    bounds = [-(-num_micro_batches * i // num_groups) for i in range(num_groups + 1)]
    return list(itertools.starmap(range, itertools.pairwise(bounds)))


def _alternating(
    num_stages: int, num_micro_batches: int, num_warm_up: Callable[[int], int]
) -> Schedule:
    """Returns a schedule of one stage per device. Passes alternate after warm-up."""

    def column(stage: int) -> tuple[Op, ...]:
        forwards, backwards = (
            [Op(kind, m, stage) for m in range(num_micro_batches)]
            for kind in (Kind.FORWARD, Kind.BACKWARD)
        )
        return _alternate(forwards, backwards, num_warm_up(stage))

    columns = tuple(map(column, range(num_stages)))
    return Schedule(num_stages, num_micro_batches, columns)


def _alternate(
    forwards: Sequence[Op], backwards: Sequence[Op], num_warm_up: int
) -> tuple[Op, ...]:
    """Returns a device's passes: warm-up forwards, alternating ones, last backwards."""
    pairs = zip(forwards[num_warm_up:], backwards, strict=False)
    return (
        *forwards[:num_warm_up],
        *itertools.chain.from_iterable(pairs),
        *backwards[max(len(forwards) - num_warm_up, 0) :],
    )
