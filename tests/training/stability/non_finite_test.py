"""A limited number of consecutive steps that are not finite is skipped."""

from __future__ import annotations

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.stability.non_finite import (
    SkippedSteps,
    define_skipping_params,
)


def test_consecutive_steps_are_counted() -> None:
    p = Params()
    define_skipping_params(p)
    assert not SkippedSteps(p).may_skip()
    skipped = SkippedSteps(p.Set(max_skipped_steps=2))
    for _ in range(2):
        assert [skipped.may_skip() for _ in range(3)] == [True, True, False]
        skipped.add_finite()
