"""Which device of which replica a stage runs on, and where its weights are. Pure.

devices       a b | c d       R = 2 replicas of K = 2 stages
stage 0       a     c         its cells' weights: on a, on c, on a, ...
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lingvo_pipe.pipeline.devices.device_names import device_names


def replica_devices(
    devices: Sequence[str], num_replicas: int, stages: Sequence[int]
) -> list[list[str]]:
    """For each replica the device of each stage.

    Args:
        devices: those of the first replica, then those of the next one, ...
        num_replicas: R.
        stages: for each stage the number of its device within a replica.

    Raises:
        ValueError: if a stage is not on devices of one kind, which may round otherwise;
            or if there are several replicas on TPUs, for one of which XLA compiles.
    """
    size = len(devices) // num_replicas
    replicas = [[devices[r * size + k] for k in stages] for r in range(num_replicas)]
    for stage, own in enumerate(zip(*replicas, strict=True)):
        names = device_names(own)
        if num_replicas > 1 and names[0].kind == "TPU":
            raise ValueError(
                "num_replicas must be 1 on TPUs, for layers are compiled for one of "
                f"them; got {num_replicas}, and stage {stage} is on "
                f"{[name.short for name in names]}. Use more stages instead."
            )
        if len({name.kind for name in names}) > 1:
            raise ValueError(
                "A stage must be on devices of one kind in all replicas; stage "
                f"{stage} is on {[name.short for name in names]}. Name the devices of "
                "one replica after those of another, in the same order."
            )
    return replicas


def homes_in_turn(ends: Sequence[int], replicas: Sequence[Sequence[str]]) -> list[str]:
    """For each cell the device where its weights are: of its stage, in some replica.

    Args:
        ends: of the stages.
        replicas: as from `replica_devices`.
    """
    return [
        replicas[i % len(replicas)][k]
        for k, (start, end) in enumerate(itertools.pairwise([0, *ends]))
        for i in range(end - start)
    ]
