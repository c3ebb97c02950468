"""Costs of operations and messages: given, fitted to a timeline, or medians."""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from lingvo_pipe.pipeline.schedules.schedule import COPIES, Kind, Op, Schedule
from lingvo_pipe.pipeline.simulation.timeline import Timeline


@dataclasses.dataclass(frozen=True)
class StageCosts:
    """The costs of one micro-batch on one stage, in seconds.

    Attributes:
        backward: a backward pass that computes all gradients.
        recompute: a recomputation. If None, it takes as long as a forward pass.
        input_gradient: a backward pass in a schedule with WEIGHT_GRADIENT operations.
            If None, it takes half of `backward`.
        weight_gradient: a WEIGHT_GRADIENT. If None, it takes half of `backward`.
        send_forward: from the end of a forward pass until its outputs have reached the
            next stage's device.
        send_backward: from the end of a backward pass until the gradients of its inputs
            have reached the previous stage's device.
        offload, load: a copy of the offloaded residuals to the host, and back.
    """

    forward: float
    backward: float = 0.0
    recompute: float | None = None
    input_gradient: float | None = None
    weight_gradient: float | None = None
    update: float = 0.0
    send_forward: float = 0.0
    send_backward: float = 0.0
    offload: float = 0.0
    load: float = 0.0

    def seconds(self, kind: Kind, *, split: bool = False) -> float:
        """Returns the seconds that an operation of the given kind computes.

        `split` states whether weight gradients are separate operations.
        """
        if kind is Kind.BACKWARD and not split:
            return self.backward
        seconds, default = {
            Kind.FORWARD: (self.forward, 0.0),
            Kind.RECOMPUTE: (self.recompute, self.forward),
            Kind.BACKWARD: (self.input_gradient, self.backward / 2),
            Kind.WEIGHT_GRADIENT: (self.weight_gradient, self.backward / 2),
            Kind.UPDATE: (self.update, 0.0),
            Kind.OFFLOAD: (0.0, 0.0),
            Kind.LOAD: (0.0, 0.0),
        }[kind]
        return default if seconds is None else seconds


@dataclasses.dataclass(frozen=True)
class Costs:
    """The costs of a step's stages, in seconds.

    `overhead` is a device's extra time for each operation, before it waits for the
    operation's messages.
    """

    stages: tuple[StageCosts, ...]
    overhead: float = 0.0

    def seconds(self, schedule: Schedule, op: Op) -> float:
        """Returns the seconds that a device computes for an operation."""
        split = Op(Kind.WEIGHT_GRADIENT, op.micro_batch, op.stage) in schedule
        return self.stages[op.stage].seconds(op.kind, split=split)

    def send_seconds(self, op: Op) -> float:
        """Returns the seconds until an operation's result reaches another device."""
        if op.kind is Kind.UPDATE:
            return 0.0  # The message is a credit without tensors.
        stage = self.stages[op.stage]
        return stage.send_forward if op.kind is Kind.FORWARD else stage.send_backward

    def copy_seconds(self, copy: Op) -> float:
        """Returns the seconds of the copy that an OFFLOAD or LOAD stands for."""
        stage = self.stages[copy.stage]
        return stage.offload if copy.kind is Kind.OFFLOAD else stage.load


def median_costs(steps: Sequence[Costs]) -> Costs:
    """Returns the median of each cost over several steps of one schedule."""
    stages = zip(*(costs.stages for costs in steps), strict=True)
    return Costs(
        stages=tuple(map(_median_stage, stages)),
        overhead=median(costs.overhead for costs in steps),
    )


def _median_stage(stages: Sequence[StageCosts]) -> StageCosts:
    costs: dict[str, Any] = {}
    for field in dataclasses.fields(StageCosts):
        values = [getattr(stage, field.name) for stage in stages]
        seconds = [value for value in values if value is not None]
        costs[field.name] = median(seconds) if seconds else None
    return StageCosts(**costs)


def fitted_costs(timeline: Timeline) -> Costs:
    """Estimates the costs with which `simulate` would return a timeline.

    An operation of a stage costs the mean over the micro-batches. A message costs
    the median delay over the micro-batches whose receiver already waited when the
    message was sent. If there are no such micro-batches, a message costs the smallest
    delay over micro-batches whose receiver began to wait later. If no receiver waited,
    the message is free, since its delay had no effect. Copies cost the mean, or nothing
    if the timeline has none.
    """
    seconds: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for _, timed in timeline.ops():
        seconds[timed.op.kind, timed.op.stage].append(timed.seconds)
    copied: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for timed in itertools.chain(*timeline.copies):
        copied[timed.op.kind, timed.op.stage].append(timed.seconds)
    delays = _message_delays(timeline)

    def stage_costs(stage: int) -> StageCosts:
        mean = {
            kind: fmean(seconds[kind, stage]) for kind in Kind if seconds[kind, stage]
        }
        copies = {k: fmean(copied[k, stage]) for k in COPIES if copied[k, stage]}
        backward = mean.get(Kind.BACKWARD, 0.0)
        weight_gradient = mean.get(Kind.WEIGHT_GRADIENT)
        split = weight_gradient is not None
        return StageCosts(
            forward=mean.get(Kind.FORWARD, 0.0),
            backward=backward + (weight_gradient or 0.0),
            recompute=mean.get(Kind.RECOMPUTE),
            input_gradient=backward if split else None,
            weight_gradient=weight_gradient,
            update=mean.get(Kind.UPDATE, 0.0),
            send_forward=delays.get((Kind.FORWARD, stage), 0.0),
            send_backward=delays.get((Kind.BACKWARD, stage), 0.0),
            offload=copies.get(Kind.OFFLOAD, 0.0),
            load=copies.get(Kind.LOAD, 0.0),
        )

    # The time before each operation when its device neither computes nor waits.
    gaps = [
        timed.wait_start - free
        for column in timeline.columns
        for free, timed in zip([0.0, *(x.end for x in column)], column, strict=False)
    ]
    return Costs(
        stages=tuple(map(stage_costs, range(timeline.schedule.num_stages))),
        overhead=fmean(gaps) if gaps else 0.0,
    )


def _message_delays(timeline: Timeline) -> dict[tuple[Kind, int], float]:
    """Returns seconds by a message's sender (kind, stage), if a receiver waited."""
    schedule = timeline.schedule
    devices = schedule.device_of_stage()
    ends = {timed.op: timed.end for _, timed in timeline.ops()}
    copied = {timed.op: timed.end for timed in itertools.chain(*timeline.copies)}
    awaited: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    noticed: dict[tuple[Kind, int], list[float]] = defaultdict(list)
    for device, (op, wait_start, start, _) in timeline.ops():
        loaded = copied.get(op._replace(kind=Kind.LOAD), 0.0)
        for need in schedule.dependencies(op):
            # It may also have waited for a copy that ended after the message was sent.
            if devices[need.stage] == device or loaded > ends[need]:
                continue
            delay = start - ends[need]
            if wait_start <= ends[need]:
                awaited[need.kind, need.stage].append(delay)
            elif wait_start < start:
                noticed[need.kind, need.stage].append(delay)
    return {sender: min(delays) for sender, delays in noticed.items()} | {
        sender: median(delays) for sender, delays in awaited.items()
    }
