"""What a registered model must give."""

from __future__ import annotations

import pytest

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.training.single_task_model_params import SingleTaskModelParams


def test_a_task_that_is_not_returned_is_told() -> None:
    class Forgetful(SingleTaskModelParams):
        def Task(self) -> InstantiableParams:
            return None  # type: ignore[return-value]  # As a body without `return`.

    with pytest.raises(ValueError, match=r"Forgetful\.Task\b.*None"):
        Forgetful().Model()
