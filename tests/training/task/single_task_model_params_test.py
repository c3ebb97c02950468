"""A registered model must return its params."""

from __future__ import annotations

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams


def test_a_task_that_is_not_returned_is_refused() -> None:
    class Forgetful(SingleTaskModelParams):
        def Task(self) -> InstantiableParams:
            return None  # type: ignore[return-value]  # Like a body without `return`.

    with pytest.raises(ValueError, match=r"Forgetful\.Task\b.*None"):
        Forgetful().Model()
