"""What is asked of a model, beside its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.jobs import ModelRequest
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.single_task_model_params import SingleTaskModelParams


class NoDataInput:
    """An input that reads nothing."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        return InstantiableParams(cls)


@model_registry.RegisterSingleTaskModel
class NoData(SingleTaskModelParams):
    """Is found by its name."""

    def Train(self) -> InstantiableParams:
        return NoDataInput.Params()

    def Task(self) -> InstantiableParams:
        return BaseTask.Params()


def test_data_sets_are_where_the_flag_says() -> None:
    for dataset in ("Train", "Test"):
        request = ModelRequest("image.digits.AmoebaNetDigits", data_dir="~/sets")
        assert request.params(dataset).input.data_dir == str(Path.home() / "sets")


def test_a_place_for_an_input_that_has_none_is_refused() -> None:
    (name,) = (n for n in model_registry.ListModels() if n.endswith("jobs_test.NoData"))
    with pytest.raises(ValueError, match=f"that of {name}, NoDataInput, has none"):
        ModelRequest(name, data_dir="/data").params("Train")
