"""Interleaved 1F1B (arXiv 2104.04473, 2.2): several stages per device. Pure.

For 2 devices with 2 stages each and 4 micro-batches, time to the right; F and B are a
device's first stage, f and b its second:

    device 1 |    F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3
    device 0 | F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1    b2    b3 B2 B3

A micro-batch goes round the devices V times. The pipeline fills and drains in stages
that are V times shorter, so the bubble is (K - 1) / (V·M) of the busy time: a V-th of
1F1B's, for M >= K. In return, devices stash and send more.

A device takes the micro-batches in groups: first all of a group in its first stage,
then all in its second, and so on. A group of at least K keeps the devices busy: its
first micro-batch has come round before its last has left. So M is cut into as many
groups of at least K as possible, of almost equal sizes, the larger first, because the
first group's size sets the number of warm-up passes. Fewer than K micro-batches are the
beginning of a group of K.
"""

from __future__ import annotations

import itertools

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.pipeline.schedules.one_f_one_b import alternate, one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


def interleaved(
    num_devices: int, num_micro_batches: int, stages_per_device: int
) -> Schedule:
    """Returns interleaved 1F1B with flush: stage s is on device s mod `num_devices`."""
    check_counts(
        num_devices=num_devices,
        num_micro_batches=num_micro_batches,
        stages_per_device=stages_per_device,
    )
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
        # The first group's earlier stages; then, there and back, the later devices.
        num_warm_up = (stages_per_device - 1) * len(groups[0])
        num_warm_up += 2 * (num_devices - 1 - device)
        ops = alternate(forwards, backwards, num_warm_up)
        return tuple(op for op in ops if op.micro_batch < num_micro_batches)

    columns = tuple(map(column, range(num_devices)))
    return Schedule(num_stages, num_micro_batches, columns)


def _groups(num_micro_batches: int, min_size: int) -> list[range]:
    """Cuts micro-batches into as many groups as possible, the larger first."""
    num_groups = num_micro_batches // min_size
    bounds = [-(-num_micro_batches * i // num_groups) for i in range(num_groups + 1)]
    return list(itertools.starmap(range, itertools.pairwise(bounds)))
