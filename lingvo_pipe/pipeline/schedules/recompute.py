r"""Recomputation: RECOMPUTE operations in place of stashed residuals.

GPipe under 'always':

    device 1 |    F0 F1       R0 B0 R1 B1
    device 0 | F0 F1          R0    B0 R1 B1

A RECOMPUTE comes directly before its BACKWARD, so a device recomputes while it would
otherwise wait for the gradient. If all layers of the stage are recomputed, the stash
holds only the stage's inputs between the forward pass and the RECOMPUTE.
"""

from collections.abc import Collection, Iterator

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule

POLICIES = ("always", "except_last", "never")


def recomputed(
    schedule: Schedule, policy: str, stages: Collection[int] | None = None
) -> Schedule:
    """Returns a copy of a schedule with the RECOMPUTE operations that a policy adds.

    'always' adds one before each backward pass. 'except_last' leaves out the last
    micro-batch, as torchgpipe does. 'never' adds none. No policy adds one to a backward
    pass directly after its own forward pass, such as each backward pass of 1F1B's last
    stage: the residuals must exist at that moment anyway, so stashing them costs no
    memory. If `stages` is given, only these stages recompute. In a schedule with
    WEIGHT_GRADIENT operations, residuals are stashed from the RECOMPUTE until the
    WEIGHT_GRADIENT has run.

    Raises:
        ValueError: if the policy is unknown, or the schedule has RECOMPUTE operations.
    """
    if policy not in POLICIES:
        expected = f"one of {', '.join(map(repr, POLICIES))}"
        raise UserValueError(
            path="recompute", expected=expected, got=policy, names=POLICIES
        )
    if Kind.RECOMPUTE in schedule.kinds:
        raise UserValueError(
            path="recompute",
            expected="None, because the schedule has RECOMPUTE operations of its own",
            got=policy,
        )
    if policy == "never":
        return schedule
    num_micro_batches = schedule.num_micro_batches
    stashed = num_micro_batches - 1 if policy == "except_last" else None
    columns = tuple(
        tuple(_with_recompute(column, stashed, stages)) for column in schedule.columns
    )
    return Schedule(schedule.num_stages, num_micro_batches, columns)


def _with_recompute(
    column: tuple[Op, ...], stashed: int | None, stages: Collection[int] | None
) -> Iterator[Op]:
    for before, op in zip((None, *column), column, strict=False):
        kind, m, stage = op
        directly_after = before == Op(Kind.FORWARD, m, stage)
        recomputes = stages is None or stage in stages
        if kind is Kind.BACKWARD and m != stashed and not directly_after and recomputes:
            yield Op(Kind.RECOMPUTE, m, stage)
        yield op
