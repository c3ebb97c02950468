"""How long each operation takes, and each message on its way. Pure."""

from __future__ import annotations

import dataclasses

from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule


@dataclasses.dataclass(frozen=True)
class StageCosts:
    """What one micro-batch costs on one stage, in seconds.

    Attributes:
        forward: of a forward pass.
        backward: of a backward pass that yields all gradients.
        recompute: of a recomputation; None: as long as a forward pass.
        input_gradient: of a backward pass in a schedule that leaves the weights'
            gradients to WEIGHT_GRADIENT operations; None: half of `backward`.
        weight_gradient: of such an operation; None: half of `backward`.
        update: of the change of the stage's weights after a step.
        send_forward: until the stage's outputs have reached the next stage's device.
        send_backward: until its inputs' gradients have reached the previous one's.
    """

    forward: float
    backward: float = 0.0
    recompute: float | None = None
    input_gradient: float | None = None
    weight_gradient: float | None = None
    update: float = 0.0
    send_forward: float = 0.0
    send_backward: float = 0.0

    def seconds(self, kind: Kind, *, split: bool = False) -> float:
        """Of an operation; `split`: whether weights have operations of their own."""
        if kind is Kind.FORWARD:
            return self.forward
        if kind is Kind.BACKWARD and not split:
            return self.backward
        if kind is Kind.RECOMPUTE:
            return self.forward if self.recompute is None else self.recompute
        if kind is Kind.UPDATE:
            return self.update
        of_kind = {
            Kind.BACKWARD: self.input_gradient,
            Kind.WEIGHT_GRADIENT: self.weight_gradient,
        }[kind]
        return self.backward / 2 if of_kind is None else of_kind


@dataclasses.dataclass(frozen=True)
class Costs:
    """What the operations of a step cost, in seconds.

    Attributes:
        stages: of each stage.
        overhead: what a device spends on each operation besides it, before it waits for
            the operation's messages.
    """

    stages: tuple[StageCosts, ...]
    overhead: float = 0.0

    def seconds(self, schedule: Schedule, op: Op) -> float:
        """How long an operation of a schedule computes."""
        split = Op(Kind.WEIGHT_GRADIENT, op.micro_batch, op.stage) in schedule
        return self.stages[op.stage].seconds(op.kind, split=split)

    def send_seconds(self, op: Op) -> float:
        """How long the result of an operation is on its way to another device."""
        if op.kind is Kind.UPDATE:
            return 0.0  # What tells of it is nothing but that.
        stage = self.stages[op.stage]
        return stage.send_forward if op.kind is Kind.FORWARD else stage.send_backward
