"""How many bytes a training step sends from device to device, by shapes. Pure.

    replica 0     a -- values --> b        M / R micro-batches each
                  a <- gradients- b
    replica 1     c ------------> d
    weights       a --> c                  once a step, from their home
    totals        a <-- c                  once a part

Inputs and targets of the mini-batch come from wherever they are and are not counted,
nor are single numbers, such as totals of metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from lingvo_pipe.pipeline.plan import Plan, by_stage
from lingvo_pipe.pipeline.stage_memory import CallBytes

# By names of the device that sends and of the one that receives.
Bytes = Mapping[tuple[str, str], int]


def step_bytes(
    plan: Plan,
    hops: Sequence[Bytes],
    calls: Sequence[CallBytes],
    num_micro_batches: int,
) -> Bytes:
    """What a step sends.

    Args:
        plan: what runs.
        hops: of each replica what a micro-batch sends between stages.
        calls: of the layers; what weights and totals of gradients take.
        num_micro_batches: M.
    """
    found: Counter[tuple[str, str]] = Counter()
    for between in hops:
        for ends, size in between.items():
            found[ends] += size * num_micro_batches // len(plan.replicas)
    homes = by_stage(plan.homes, plan.ends)
    for stage, own_calls in enumerate(by_stage(calls, plan.ends)):
        for devices in plan.replicas:
            for call, home in zip(own_calls, homes[stage], strict=True):
                away = devices[stage]
                found[home, away] += call.weights
                found[away, home] += call.totals * plan.parts_per_replica
    return {ends: size for ends, size in found.items() if size and len(set(ends)) > 1}
