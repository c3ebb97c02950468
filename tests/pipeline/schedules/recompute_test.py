import itertools

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b, zero_bubble
from lingvo_pipe.pipeline.schedules.recompute import POLICIES, recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from tests.pipeline.schedules.every_schedule import plain_schedules
from tests.pipeline.schedules.stash_sizes import StashSizes, peak_stash_sizes
from tests.support.errors import fails


@pytest.mark.parametrize("policy", POLICIES)
def test_each_backward_recomputes_unless_what_it_needs_is_kept(policy: str) -> None:
    for name, schedule in plain_schedules():
        stashed = {
            "always": set(),
            "except_last": {schedule.num_micro_batches - 1},
        }.get(policy, set(range(schedule.num_micro_batches)))
        result = recomputed(schedule, policy)
        for column, plain in zip(result.columns, schedule.columns, strict=True):
            assert [op for op in column if op.kind is not Kind.RECOMPUTE] == list(plain)
            for before, (kind, m, stage) in itertools.pairwise(column):
                if kind is Kind.BACKWARD:
                    directly_after = before == Op(Kind.FORWARD, m, stage)
                    expected = m not in stashed and not directly_after
                    recompute = Op(Kind.RECOMPUTE, m, stage)
                    assert (before == recompute) == expected, name
                    assert (recompute in result) == expected, name


def test_recomputing_always_stashes_the_residuals_of_one_micro_batch() -> None:
    for name, schedule in plain_schedules():
        if schedule.kinds == {Kind.FORWARD, Kind.BACKWARD}:
            before = peak_stash_sizes(schedule)
            after = peak_stash_sizes(recomputed(schedule, "always"))
            for was, now in zip(before, after, strict=True):
                assert now.residuals == 1, name
                assert was.residuals - 1 <= now.for_recompute <= was.residuals, name


def test_the_stash_sizes_of_each_policy_in_gpipe() -> None:
    schedule = gpipe(2, 4)
    assert peak_stash_sizes(recomputed(schedule, "always")) == [StashSizes(4, 1)] * 2
    assert (
        peak_stash_sizes(recomputed(schedule, "except_last")) == [StashSizes(3, 2)] * 2
    )
    assert peak_stash_sizes(recomputed(schedule, "never")) == [StashSizes(0, 4)] * 2


def test_the_last_stage_of_1f1b_never_recomputes() -> None:
    schedule = recomputed(one_f_one_b(3, 5), "always")
    assert schedule.columns[-1] == one_f_one_b(3, 5).columns[-1]


def test_residuals_of_weight_gradients_stay_until_they_have_run() -> None:
    """A device stashes waiting weight gradients' residuals and one micro-batch's."""
    for num_micro_batches in (1, 2, 4, 9):
        schedule = zero_bubble(4, num_micro_batches)
        before = peak_stash_sizes(schedule)
        after = peak_stash_sizes(recomputed(schedule, "always"))
        for device, (was, now) in enumerate(zip(before, after, strict=True)):
            assert was == StashSizes(0, min(4, num_micro_batches))
            assert now.residuals == min(device + 1, num_micro_batches)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "schedule", [gpipe(2, 3).forward_part(), Schedule(0, 0, ((), ()))]
)
def test_what_has_no_backward_stays_as_it_is(schedule: Schedule, policy: str) -> None:
    assert recomputed(schedule, policy) == schedule


@pytest.mark.parametrize(
    ("schedule", "policy"),
    [
        (gpipe(2, 2), "allways"),
        *[(recomputed(gpipe(2, 2), "always"), policy) for policy in POLICIES],
    ],
)
def test_wrong_policies_are_refused(schedule: Schedule, policy: str) -> None:
    with fails(path="recompute", got=policy) as error:
        recomputed(schedule, policy)
    assert ("'always'" in error.value.hint) == (policy == "allways")
