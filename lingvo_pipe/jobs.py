"""What the trainer does: finds a model, places it on devices, trains or uses it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf
import tqdm

import model_registry
from lingvo_pipe.auto_params import AutoParams, take_from_run
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.text_diff import diff_texts
from lingvo_pipe.pipeline.devices.cluster import workers_note
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.profile_plan import planned_for_profile
from lingvo_pipe.training.changed_params import check_allowed, check_use
from lingvo_pipe.training.decoder_run import check_decode_input, decode
from lingvo_pipe.training.evaler_run import evaluate_run
from lingvo_pipe.training.export import export_model
from lingvo_pipe.training.inspect_model import describe
from lingvo_pipe.training.local_params import plain_task
from lingvo_pipe.training.local_training import with_local_losses
from lingvo_pipe.training.pipeline_inputs import tell_inputs
from lingvo_pipe.training.placement import place_stages
from lingvo_pipe.training.report.html_report import write_report
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_vocabulary import (
    check_num_tokens,
    check_one_vocabulary,
    check_vocabulary,
)
from lingvo_pipe.training.run_weights import open_run, weights_in_turn
from lingvo_pipe.training.step_profiler import check_profile_step
from lingvo_pipe.training.training_loop import train

# Has TensorFlow look for GPUs now, while what it says about those it misses is hidden.
tf.config.list_physical_devices("GPU")


@dataclass(frozen=True)
class ModelRequest:
    """A registered model, and what the user wants changed.

    Attributes:
        name: the model's name.
        imports: packages to import first, for the models they register.
        override: params to change, separated by `;`.
        data_dir: where data sets are; None: where the model says.
        max_steps: number of steps to train for; None: the model's own.
        devices: a number or names; None: the model's own, see `place_stages`.
        cluster: the workers whose devices are among them, if there are any.
        await_workers: see `initialize_devices`.
    """

    name: str
    imports: Sequence[str] = ()
    override: str = ""
    data_dir: str | None = None
    max_steps: int | None = None
    devices: int | Sequence[str] | None = None
    cluster: Cluster | None = None
    await_workers: Callable[[], None] | None = None

    def params(self, dataset: str) -> Params:
        """The model's params with the changes, its input being that of `dataset`.

        Raises:
            ValueError: if a change can't be made.
        """
        model_registry.ImportModels(self.imports)
        model = model_registry.GetParams(self.name, dataset)
        model.FromText(self.override, separator=";")
        if self.data_dir is not None:
            self._set_data_dir(model.input, self.data_dir)
        if self.max_steps is not None:
            model.task.train.max_steps = self.max_steps
        return model

    def _set_data_dir(self, params: Params, data_dir: str) -> None:
        if "data_dir" not in params:
            raise ValueError(
                "--data_dir is for inputs with a param data_dir; that of "
                f"{self.name}, {params.cls.__name__}, has none. Leave the flag out."
            )
        params.data_dir = os.path.expanduser(data_dir)


def list_models(imports: Sequence[str]) -> list[str]:
    """Names of all registered models, those of the packages `imports` included."""
    model_registry.ImportAll()
    model_registry.ImportModels(imports)
    return model_registry.ListModels()


def inspect_model(request: ModelRequest) -> str:
    """Describes layers, shapes, parameters and stages of a model."""
    model = request.params("Train")
    auto = AutoParams(model.task.pipeline)
    note = _place(model, request)
    data = model.input.Instantiate()
    note = _joined(note, auto.settle(model, data, model.task.pipeline.devices))
    tell_inputs(model.task, data)
    description = describe(with_local_losses(model.task, data), data)
    return f"{note}\n\n{description}" if note else description


def inspect_params(request: ModelRequest) -> str:
    """All params of a model, and those of the input of each other data set."""
    parts = [request.params("Train").ToText()]
    for dataset in model_registry.GetDatasets(model_registry.GetClass(request.name)):
        if dataset != "Train":
            only_input = Params()
            only_input.Define("input", request.params(dataset).input, "")
            parts.append(f"# {dataset}\n{only_input.ToText()}")
    return "\n".join(parts).rstrip("\n")


def diff_params(request: ModelRequest, other: str | None, logdir: str | None) -> str:
    """What differs between a model, `>`, and another one or that of a run, `<`.

    A line before says which is which.

    Args:
        request: the model.
        other: the other one's name, with the same changes by the user; None: it is that
            of `logdir`.
        logdir: of a run of the model; None: it is `other`.
    """
    ours = request.params("Train")
    if other is not None:
        theirs = dataclasses.replace(request, name=other).params("Train")
        found = ours.TextDiff(theirs)
    else:
        directory = open_run(os.path.expanduser(logdir or ""), request.name)
        _place(ours, request, lambda: directory)
        tell_inputs(ours.task, ours.input.Instantiate())
        found = diff_texts(ours.ToText(), directory.read_params() or "")
    legend = f"# > {request.name}    < {other or directory.path}\n"
    return (legend + found).rstrip("\n") if found else "Nothing differs."


def report_run(logdir: str, model_name: str | None = None) -> str:
    """Writes the page about a run, and says where it is.

    Args:
        logdir: of the run.
        model_name: what it trains; None: whatever that is.
    """
    directory = open_run(os.path.expanduser(logdir), model_name)
    return f"The report is {write_report(directory)}."


def train_model(
    request: ModelRequest,
    logdir: str,
    profile_step: int | None = None,
    allowed_changes: Sequence[str] = (),
) -> None:
    """Trains a model to its last step, or goes on with it, and evaluates it.

    Args:
        request: the model.
        logdir: of the run.
        profile_step: see `train`.
        allowed_changes: likewise.

    Raises:
        ValueError: if that can't be done; see `train`.
    """
    model, test_model = request.params("Train"), request.params("Test")
    path = os.path.expanduser(logdir)
    pipeline = model.task.pipeline
    auto = AutoParams(pipeline, lambda: RunDirectory(path, request.name))
    note = _place(model, request)
    train_input = model.input.Instantiate()
    test_input = test_model.input.Instantiate()
    # What is wrong is told before planning and building, which may take minutes.
    train_input.TrainBatches()
    test_input.EvalBatches()
    check_one_vocabulary(train_input, test_input)
    check_num_tokens([*pipeline.before_tpl, *pipeline.cell_tpl], train_input)
    if profile_step is not None:
        check_profile_step(profile_step, model.task.train.max_steps)
    directory = RunDirectory(path, request.name)
    if allowed_changes:  # A model of a thousand layers has a text of megabytes.
        check_allowed(allowed_changes, model.ToText(), directory.read_params())
    note = _joined(note, auto.settle(model, train_input, pipeline.devices))
    tell_inputs(model.task, train_input)
    task = with_local_losses(model.task, train_input).Instantiate()
    log, planned = _log_after(note), None
    if profile_step is not None:
        planned = planned_for_profile(model, task.pipeline, train_input, log)
    train(
        task,
        train_input,
        test_input,
        directory,
        model.ToText(),
        log=log,
        profile_step=profile_step,
        allowed_changes=allowed_changes,
        planned=planned,
    )


@dataclass(frozen=True)
class RunUse:
    """What is done with weights that a run has trained, or is training.

    Attributes:
        logdir: of the run.
        split: the data set it is done with, such as `Test`.
        checkpoint: the name of one of the run's, or `best`; None: the newest.
        follow_seconds: see `weights_in_turn`.
        allowed_changes: see `check_use`.
    """

    logdir: str
    split: str
    checkpoint: str | None = None
    follow_seconds: float | None = None
    allowed_changes: Sequence[str] = ()

    def directory(self, model_name: str) -> RunDirectory:
        """The run's directory, waited for if it is to be followed.

        Raises:
            ValueError: if there is none, or it trains another model.
        """
        logdir = os.path.expanduser(self.logdir)
        return open_run(logdir, model_name, self.follow_seconds)

    def open(self, model_name: str, model: Params) -> RunDirectory:
        """The run's directory.

        Args:
            model_name: what it trains.
            model: with which the weights are to be used.

        Raises:
            ValueError: if there is none, or it trains another model than this one.
        """
        directory = self.directory(model_name)
        trained, now = directory.read_params() or "", model.ToText()
        if self.allowed_changes:
            check_allowed(self.allowed_changes, trained, now)
        check_use(trained, now, self.allowed_changes)
        return directory


def evaluate_data_set(request: ModelRequest, use: RunUse) -> None:
    """Evaluates a model on a data set with weights that it was trained to."""
    model = request.params(use.split)
    note = _place(model, request, lambda: use.directory(request.name))
    data = model.input.Instantiate()
    data.EvalBatches()
    directory = use.open(request.name, model)
    tell_inputs(model.task, data)
    task, log = plain_task(model.task).Instantiate(), _log_after(note)
    split = use.split.lower()
    evaluate_run(task, data, directory, split, use.checkpoint, use.follow_seconds, log)


def export_trained(request: ModelRequest, use: RunUse) -> None:
    """Writes a SavedModel of a model with weights that it was trained to."""
    model = request.params(use.split)
    note = _place(model, request, lambda: use.directory(request.name))
    data = model.input.Instantiate()
    directory = use.open(request.name, model)
    tell_inputs(model.task, data)
    task = plain_task(model.task).Instantiate()
    log = _log_after(note)
    check_vocabulary(directory.path, data)
    for step in weights_in_turn(
        task, directory, use.checkpoint, use.follow_seconds, log
    ):
        path = directory.export_path / str(step)
        export_model(task, data.element_spec, path)
        log(f"Exported the checkpoint of step {step} to {path}.")


def decode_data_set(request: ModelRequest, use: RunUse) -> None:
    """Translates a data set of a model with weights that it was trained to."""
    model = request.params(use.split)
    note = _place(model, request, lambda: use.directory(request.name))
    data = model.input.Instantiate()
    # What is wrong here is told before the model is built, which may take minutes.
    sentences = check_decode_input(data)
    directory = use.open(request.name, model)
    tell_inputs(model.task, data)
    task = plain_task(model.task).Instantiate()
    log = _log_after(note)
    decode(
        task,
        sentences,
        directory,
        use.split.lower(),
        use.checkpoint,
        use.follow_seconds,
        log,
    )


def _place(
    model: Params,
    request: ModelRequest,
    opened: Callable[[], RunDirectory] | None = None,
) -> str:
    """Makes the devices ready and gives one to each stage; returns a note for users.

    Args:
        model: its params, which are changed.
        request: what is asked for.
        opened: returns the directory of a run whose weights are used; what is `auto`
            becomes as it was in it. None: nothing is.
    """
    pipeline = model.task.pipeline
    if opened is not None:
        take_from_run(pipeline, opened, request.devices)
    placement = place_stages(pipeline, request.devices)
    pipeline.devices = initialize_devices(
        placement.devices, request.cluster, request.await_workers
    )
    return _joined(workers_note(), placement.note)


def _joined(*notes: str) -> str:
    return "\n".join(filter(None, notes))


def _log_after(note: str) -> Callable[[str], None]:
    """Writes lines for the user, the first of them after the note.

    So a run that can't begin says why, and nothing else.
    """
    waiting = [note] if note else []

    def log(line: str) -> None:
        for each in (*waiting, line):
            tqdm.tqdm.write(each)
        waiting.clear()

    return log
