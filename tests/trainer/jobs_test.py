"""What is asked of a model, beside its name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import model_registry
from lingvo_pipe import jobs
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.jobs import ModelRequest
from lingvo_pipe.layers.token_embedding import TokenEmbeddingLayer
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


class NoWordsInput:
    """An input that has nothing but a vocabulary."""

    def __init__(self, params: InstantiableParams):
        name = params.fingerprint
        self.vocabulary = SimpleNamespace(
            fingerprint=name, path=f"{name}.vocab", size=8
        )

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("fingerprint", "", "Of the vocabulary.")
        return p

    def TrainBatches(self, start_step: int = 0) -> Any:
        return []

    def EvalBatches(self) -> Any:
        return []


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


@model_registry.RegisterSingleTaskModel
class TwoVocabularies(SingleTaskModelParams):
    """Is tested under another vocabulary than it is trained with."""

    def Train(self) -> InstantiableParams:
        return NoWordsInput.Params().Set(fingerprint="old")

    def Test(self) -> InstantiableParams:
        return NoWordsInput.Params().Set(fingerprint="new")

    def Task(self) -> InstantiableParams:
        return NeverBuilt.Params()


@model_registry.RegisterSingleTaskModel
class FewTokens(SingleTaskModelParams):
    """Has a smaller table than there are tokens."""

    def Train(self) -> InstantiableParams:
        return NoWordsInput.Params()

    def Test(self) -> InstantiableParams:
        return NoWordsInput.Params()

    def Task(self) -> InstantiableParams:
        p = NeverBuilt.Params()
        p.pipeline.cell_tpl = [TokenEmbeddingLayer.Params().Set(name="e", num_tokens=7)]
        return p


def _name_of(model: type) -> str:
    ending = f"jobs_test.{model.__name__}"
    (name,) = (n for n in model_registry.ListModels() if n.endswith(ending))
    return name


def test_data_sets_are_where_the_flag_says() -> None:
    for dataset in ("Train", "Test"):
        request = ModelRequest("image.digits.AmoebaNetDigits", data_dir="~/sets")
        assert request.params(dataset).input.data_dir == str(Path.home() / "sets")


def test_a_place_for_an_input_that_has_none_is_refused() -> None:
    name = _name_of(NoData)
    with pytest.raises(ValueError, match=f"that of {name}, NoDataInput, has none"):
        ModelRequest(name, data_dir="/data").params("Train")


@pytest.mark.parametrize("splits", [1, "auto"])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NoData, "there is no data"),
        (FewTokens, "e has 7, and .vocab has 8"),
        (TwoVocabularies, r"vocab_file is old \(old.vocab\) for training, and new"),
    ],
)
def test_faulty_data_are_told_before_the_model_is_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: type,
    message: str,
    splits: int | str,
) -> None:
    monkeypatch.setattr(jobs, "_place", lambda *_: "")
    kind = "str" if isinstance(splits, str) else "int"
    override = f"task.pipeline.splits ({kind}) : {splits}"
    request = ModelRequest(_name_of(model), override=override)
    with pytest.raises(ValueError, match=message):
        jobs.train_model(request, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
