"""A registered model must return its params."""

from __future__ import annotations

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams
from tests.support.errors import fails


def test_a_task_that_is_not_returned_is_refused() -> None:
    class Forgetful(SingleTaskModelParams):
        def Task(self) -> InstantiableParams:
            return None  # type: ignore[return-value]  # Like a body without `return`.

    with fails(path="Forgetful.Task", got=None):
        Forgetful().Model()
