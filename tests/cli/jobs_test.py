"""Jobs check what the user asks for before they build or measure anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.cli import auto_params, train_job, use_jobs
from lingvo_pipe.cli.model_request import ModelRequest
from lingvo_pipe.cli.use_jobs import RunUse
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.embedding import TokenEmbeddingLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.simulation.timeline import Timeline
from lingvo_pipe.training.profiling.step_profile import PlannedStep
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams
from tests.support.errors import fails


class NoDataInput:
    """An input that has nothing to read."""

    def __init__(self, params: InstantiableParams):
        self.params = params

    @classmethod
    def Params(cls) -> InstantiableParams:
        return InstantiableParams(cls)

    def TrainBatches(self, start_step: int = 0) -> Any:
        raise UserValueError(path="data", expected="some", got=None)


class NoWordsInput:
    """An input that has nothing but a vocabulary, and a note."""

    note = "No words."

    def __init__(self, params: InstantiableParams):
        name = params.fingerprint
        self.vocabulary = SimpleNamespace(
            fingerprint=name, path=f"{name}.vocab", size=8
        )

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("fingerprint", "", "Of the vocabulary.")
        p.Define("part", "train", "Of the data.")
        return p

    def TrainBatches(self, start_step: int = 0) -> Any:
        return tf.data.Dataset.from_tensors(NestedMap(x=1.0))

    def EvalBatches(self) -> Any:
        return self.TrainBatches()

    def DecodeBatches(self) -> Any:
        return []


class ThreeClassesInput(NoWordsInput):
    """An input of three classes, of which nothing can be read."""

    class_names = ("ant", "bee", "cat")
    element_spec = NestedMap(image=tf.TensorSpec([2, 4, 4, 1]))

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        del self.vocabulary


class NeverBuilt(ImageClassifier):
    """A task that takes too long to build."""

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        raise AssertionError("built")


class _Model(SingleTaskModelParams):
    """A model of one layer, by default with an input that has only a vocabulary."""

    INPUT: Any = NoWordsInput
    TASK: type[BaseTask] = NeverBuilt
    LAYER = FCLayer.Params().Set(input_dim=1, output_dim=2)

    def Train(self) -> InstantiableParams:
        return self.INPUT.Params()

    def Test(self) -> InstantiableParams:
        return self.INPUT.Params()

    def Task(self) -> InstantiableParams:
        p = self.TASK.Params()
        p.pipeline.cell_tpl = [self.LAYER.Copy()]
        return p


@model_registry.RegisterSingleTaskModel
class NoData(_Model):
    """A model that is found by its name."""

    INPUT = NoDataInput


@model_registry.RegisterSingleTaskModel
class TwoVocabularies(_Model):
    """A model with another vocabulary for tests than for training."""

    def Test(self) -> InstantiableParams:
        return NoWordsInput.Params().Set(fingerprint="new")


@model_registry.RegisterSingleTaskModel
class FewTokens(_Model):
    """A model whose table is smaller than the number of tokens."""

    LAYER = TokenEmbeddingLayer.Params().Set(name="e", num_tokens=7)


@model_registry.RegisterSingleTaskModel
class FewOutputs(_Model):
    """A model with fewer outputs than classes."""

    INPUT = ThreeClassesInput


@model_registry.RegisterSingleTaskModel
class Used(_Model):
    """A model that is used by stand-ins for the jobs."""

    TASK = BaseTask
    LAYER = FCLayer.Params().Set(input_dim=1, output_dim=1, activation="RELU")

    def Test(self) -> InstantiableParams:
        return NoWordsInput.Params().Set(part="test")


def _name_of(model: type) -> str:
    ending = f"jobs_test.{model.__name__}"
    (name,) = (n for n in model_registry.ListModels() if n.endswith(ending))
    return name


def test_data_sets_are_where_the_flag_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    request = ModelRequest("image.digits.AmoebaNetDigits", data_dir="~/sets")
    with fails(path="--data_dir", got=str(tmp_path / "sets")):
        request.params("Train")
    (tmp_path / "sets").mkdir()
    for dataset in ("Train", "Test"):
        assert request.params(dataset).input.data_dir == str(tmp_path / "sets")


@pytest.mark.parametrize("dataset", ["Train", "Test"])
def test_the_flag_names_the_images_of_all_inputs(dataset: str) -> None:
    override = "input.pixel_max : 99"
    request = ModelRequest(
        "image.digits.AmoebaNetDigits", dataset="cats", override=override
    )
    p = request.params(dataset)
    assert (p.input.dataset, p.input.split) == ("cats", dataset.lower())
    assert (p.input.image_size, p.input.channels) == (8, 1)
    assert p.input.pixel_max == 99


@pytest.mark.parametrize("flag", ["data_dir", "dataset"])
def test_a_flag_for_an_input_without_its_param_is_refused(flag: str) -> None:
    given: dict[str, Any] = {flag: "/data"}
    with fails(path=f"--{flag}", got="NoDataInput"):
        ModelRequest(_name_of(NoData), **given).params("Train")


@pytest.mark.parametrize("splits", ["(int) : 1", "(str) : auto"])
@pytest.mark.parametrize(
    ("model", "path"),
    [
        (NoData, "data"),
        (FewTokens, "e.num_tokens"),
        (FewOutputs, "task.pipeline.cell_tpl[0].output_dim"),
        (TwoVocabularies, "input.vocab_file"),
    ],
)
def test_faulty_data_are_told_before_the_model_is_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: type,
    path: str,
    splits: str,
) -> None:
    monkeypatch.setattr(train_job, "place_model", lambda *_: "")
    request = ModelRequest(_name_of(model), override=f"task.pipeline.splits {splits}")
    with fails(path=path):
        train_job.train_model(request, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def _change(path: str, value: str) -> str:
    return f"task.{path} : {value}"


ACTIVATION = "pipeline.cell_tpl[0].activation"
# Each job that uses weights, and what does its work.
USES: list[tuple[Callable[[ModelRequest, RunUse], object], str]] = [
    (use_jobs.evaluate_data_set, "evaluate_run"),
    (use_jobs.decode_data_set, "decode"),
    (use_jobs.export_trained, "weights_in_turn"),
]


@pytest.fixture
def logdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of a run of `Used` with another activation than its own."""
    for module in (train_job, use_jobs):
        monkeypatch.setattr(module, "place_model", lambda *_: "")
    name = _name_of(Used)
    request = ModelRequest(name, override=_change(ACTIVATION, "'TANH'"))
    directory = RunDirectory(tmp_path / "run", name)
    directory.write_params(request.params("Train").ToText())
    return str(directory.path)


@pytest.mark.parametrize(("job", "worker"), USES)
def test_weights_are_used_in_the_model_they_were_trained_in(
    logdir: str,
    monkeypatch: pytest.MonkeyPatch,
    job: Callable[[ModelRequest, RunUse], None],
    worker: str,
) -> None:
    done: list[BaseTask] = []

    def work(task: BaseTask, *arguments: Any) -> list[int]:
        done.append(task)
        return []

    monkeypatch.setattr(use_jobs, worker, work)

    def use(override: str, *allowed: str) -> None:
        request = ModelRequest(_name_of(Used), override=override)
        job(request, RunUse(logdir, "Test", allowed_changes=allowed))

    with fails(path=f"task.{ACTIVATION}"):
        use("")
    with fails(path="--allow_params_change", got="task.pipelin"):
        use("", "task.pipelin")
    assert not done
    use(_change(ACTIVATION, "'TANH'"))
    use("", f"task.{ACTIVATION}")
    # Another way to train, and to evaluate, is no other model.
    others = [_change("train.max_steps", "7"), _change("eval.images", "false")]
    use("; ".join([_change(ACTIVATION, "'TANH'"), *others]))
    assert len(done) == 3
    monkeypatch.setattr(use_jobs, worker, lambda *_: [][0])
    with pytest.raises(IndexError):  # The override is not blamed.
        use(_change(ACTIVATION, "'TANH'"))


def test_params_of_the_runs_input_that_a_job_does_not_use_are_told(
    logdir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(use_jobs, "evaluate_run", lambda *arguments: arguments[-1](""))
    name = _name_of(Used)
    for changes, count in (({}, 0), ({"input.fingerprint": "other"}, 1)):
        model = ModelRequest(name, changes=changes).params("Train")
        RunDirectory(logdir, name).write_params(model.ToText())
        use_jobs.evaluate_data_set(ModelRequest(name), RunUse(logdir, "Test"))
        output = capsys.readouterr().out
        assert output.count("input.fingerprint : 'other'") == count
        assert output.count("warning") == count


def test_a_change_by_which_the_test_reads_the_training_data_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train_job, "place_model", lambda *_: "")
    monkeypatch.setattr(train_job, "train", lambda *arguments, **_: arguments[5](""))
    for part, count in (("", 0), ("input.part : 'some'", 1)):
        request = ModelRequest(_name_of(Used), override=part)
        train_job.train_model(request, str(tmp_path / "run"))
        output = capsys.readouterr().out
        assert output.count("warning") == output.count("input.part : 'some'") == count
        assert NoWordsInput.note in output


@pytest.mark.parametrize("begun", [False, True])
def test_a_misspelt_param_is_never_allowed_to_change(
    logdir: str, tmp_path: Path, begun: bool
) -> None:
    """This holds for a new run, too, and if nothing has changed."""
    request = ModelRequest(_name_of(Used), override=_change(ACTIVATION, "'TANH'"))
    path = logdir if begun else str(tmp_path / "new")
    misspelt = "task.train.learningrate"
    with fails(path="--allow_params_change", got=misspelt):
        train_job.train_model(request, path, allowed_changes=[misspelt])


def test_what_is_auto_is_measured_after_all_else_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: Any) -> str:
        raise AssertionError("measured")

    monkeypatch.setattr(train_job, "place_model", lambda *_: "")
    monkeypatch.setattr(auto_params, "resolve_auto", resolve)
    auto = "task.pipeline.splits (str) : auto; task.pipeline.schedule : auto"
    request = ModelRequest(_name_of(FewTokens), override=auto, devices=1)
    with fails(path="e.num_tokens"):
        train_job.train_model(request, str(tmp_path / "run"))


@pytest.mark.parametrize("steps", [1, 4])
def test_a_step_among_several_is_profiled_without_a_plan(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is measured for it."""
    measured: list[Any] = []
    lines: list[str] = []
    monkeypatch.setattr(
        train_job, "expected_step", lambda *given: measured.append(given)
    )
    model = ModelRequest("lm.text.TransformerTiny").params("Train")
    model.task.train.steps_per_loop = steps
    data: Any = SimpleNamespace(element_spec=None)
    pipeline: Any = None
    train_job.planned_for_profile(model, pipeline, data, lines.append)
    assert (len(measured), len(lines)) == ((1, 0) if steps == 1 else (0, 1))
    # What was auto is planned, and is not measured twice.
    step = PlannedStep(Timeline(()), [])
    again = train_job.planned_for_profile(model, pipeline, data, lines.append, step)
    assert again is (step if steps == 1 else None)
    assert len(measured) == (steps == 1)
    if lines:
        assert re.search(r"task\.train\.steps_per_loop\b.*\b1\b", lines[0])
