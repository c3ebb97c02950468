"""Steps that are not finite are skipped, so many in a row and no more."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.skipped_steps import SkippedSteps, define_skipping_params


def _skipped(largest: Any) -> SkippedSteps:
    p = Params()
    define_skipping_params(p)
    p.max_skipped_steps = largest
    return SkippedSteps(p)


def test_by_default_none_is_skipped() -> None:
    p = Params()
    define_skipping_params(p)
    assert not SkippedSteps(p).may_skip()


def test_steps_in_a_row_are_counted() -> None:
    skipped = _skipped(2)
    assert [skipped.may_skip() for _ in range(3)] == [True, True, False]
    skipped.add_finite()
    assert [skipped.may_skip() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("wrong", [-1, 1.5, None, True, "many"])
def test_what_is_no_number_of_steps_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"max_skipped_steps.*\b0\b.*{wrong}"):
        _skipped(wrong)
