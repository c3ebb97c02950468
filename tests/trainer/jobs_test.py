"""What is asked of a model, beside its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import model_registry
from lingvo_pipe import jobs
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.jobs import ModelRequest
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.single_task_model_params import SingleTaskModelParams


class NoDataInput:
    """An input that has nothing to read."""

    def __init__(self, params: InstantiableParams):
        self.params = params

    @classmethod
    def Params(cls) -> InstantiableParams:
        return InstantiableParams(cls)

    def TrainBatches(self, start_step: int = 0) -> Any:
        raise ValueError("there is no data")


class NeverBuilt(BaseTask):
    """A task that takes too long to build."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        raise AssertionError("built")


@model_registry.RegisterSingleTaskModel
class NoData(SingleTaskModelParams):
    """Is found by its name."""

    def Train(self) -> InstantiableParams:
        return NoDataInput.Params()

    def Test(self) -> InstantiableParams:
        return NoDataInput.Params()

    def Task(self) -> InstantiableParams:
        return NeverBuilt.Params()


def _name_of_no_data() -> str:
    (name,) = (n for n in model_registry.ListModels() if n.endswith("jobs_test.NoData"))
    return name


def test_data_sets_are_where_the_flag_says() -> None:
    for dataset in ("Train", "Test"):
        request = ModelRequest("image.digits.AmoebaNetDigits", data_dir="~/sets")
        assert request.params(dataset).input.data_dir == str(Path.home() / "sets")


def test_a_place_for_an_input_that_has_none_is_refused() -> None:
    name = _name_of_no_data()
    with pytest.raises(ValueError, match=f"that of {name}, NoDataInput, has none"):
        ModelRequest(name, data_dir="/data").params("Train")


@pytest.mark.parametrize("splits", [1, "auto"])
def test_missing_data_are_told_before_the_model_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: int | str
) -> None:
    monkeypatch.setattr(jobs, "_place", lambda *_: "")
    kind = "str" if isinstance(splits, str) else "int"
    override = f"task.pipeline.splits ({kind}) : {splits}"
    request = ModelRequest(_name_of_no_data(), override=override)
    with pytest.raises(ValueError, match="there is no data"):
        jobs.train_model(request, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
