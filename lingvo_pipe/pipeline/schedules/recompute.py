r"""What a schedule computes a second time instead of keeping it. Pure.

    device 1 |    F0 F1       R0 B0 R1 B1      under 'always', GPipe
    device 0 | F0 F1          R0    B0 R1 B1

A RECOMPUTE stands directly before its BACKWARD, so a device recomputes while it would
else wait for the gradient. Between the forward pass and it, the stage's inputs are all
that is kept of the micro-batch, if all layers of the stage are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule

POLICIES = ("always", "except_last", "never")


def recomputed(schedule: Schedule, policy: str) -> Schedule:
    """A schedule with the RECOMPUTE operations that a policy asks for.

    A backward pass directly after its own forward pass gets none under any policy, such
    as all those of 1F1B's last stage: what it needs must exist at that moment anyway,
    so keeping it costs no memory.

    In a schedule with WEIGHT_GRADIENT operations, what of it they need is kept from the
    RECOMPUTE until they have run.

    Args:
        schedule: one without RECOMPUTE operations.
        policy: 'always', 'never', or 'except_last': all but the last micro-batch, whose
            backward passes come first where they come at once, as in torchgpipe.

    Raises:
        ValueError: if the policy is unknown, or the schedule has some.
    """
    if policy not in POLICIES:
        raise ValueError(
            f"recompute must be one of {', '.join(map(repr, POLICIES))}; got "
            f"{policy!r}.{did_you_mean(str(policy), POLICIES)}"
        )
    if Kind.RECOMPUTE in schedule.kinds:
        raise ValueError(
            f"This schedule says itself what is recomputed, so recompute={policy!r} "
            "can't be applied to it. Leave recompute unset, or take the RECOMPUTE "
            "operations out of the schedule."
        )
    if policy == "never":
        return schedule
    columns = tuple(
        tuple(_with_recompute(column, schedule.num_micro_batches, policy))
        for column in schedule.columns
    )
    return Schedule(schedule.num_stages, schedule.num_micro_batches, columns)


def _with_recompute(
    column: tuple[Op, ...], num_micro_batches: int, policy: str
) -> Iterator[Op]:
    kept = num_micro_batches - 1 if policy == "except_last" else None
    for before, op in zip((None, *column), column, strict=False):
        _, m, stage = op
        directly_after = before == Op(Kind.FORWARD, m, stage)
        if op.kind is Kind.BACKWARD and m != kept and not directly_after:
            yield Op(Kind.RECOMPUTE, m, stage)
        yield op
