"""A limited number of consecutive steps that are not finite is skipped."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.stability.non_finite import (
    SkippedSteps,
    define_skipping_params,
)


def _skipped(maximum: Any) -> SkippedSteps:
    p = Params()
    define_skipping_params(p)
    p.max_skipped_steps = maximum
    return SkippedSteps(p)


def test_by_default_no_step_is_skipped() -> None:
    p = Params()
    define_skipping_params(p)
    assert not SkippedSteps(p).may_skip()


def test_consecutive_steps_are_counted() -> None:
    skipped = _skipped(2)
    assert [skipped.may_skip() for _ in range(3)] == [True, True, False]
    skipped.add_finite()
    assert [skipped.may_skip() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("wrong", [-1, 1.5, None, True, "many"])
def test_a_wrong_number_of_steps_is_rejected(wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"max_skipped_steps.*\b0\b.*{wrong}"):
        _skipped(wrong)
