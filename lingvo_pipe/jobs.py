"""What the trainer does: finds a model, places it on devices, trains or uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf
import tqdm

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices.cluster import lost_workers_named
from lingvo_pipe.pipeline.devices.stage_devices import initialize_devices
from lingvo_pipe.training.decoder_run import check_decode_input, decode, open_run
from lingvo_pipe.training.inspect_model import describe
from lingvo_pipe.training.pipeline_inputs import tell_inputs
from lingvo_pipe.training.placement import place_stages
from lingvo_pipe.training.run_directory import RunDirectory
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
        workers: addresses of the workers whose devices are among them.
    """

    name: str
    imports: Sequence[str] = ()
    override: str = ""
    data_dir: str | None = None
    max_steps: int | None = None
    devices: int | Sequence[str] | None = None
    workers: Sequence[str] = ()

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
    note = _place(model, request)
    data = model.input.Instantiate()
    tell_inputs(model.task, data)
    description = describe(model.task, data)
    return f"{note}\n\n{description}" if note else description


def train_model(
    request: ModelRequest, logdir: str, profile_step: int | None = None
) -> None:
    """Trains a model to its last step, or goes on with it, and evaluates it."""
    model, test_model = request.params("Train"), request.params("Test")
    note = _place(model, request)
    train_input = model.input.Instantiate()
    test_input = test_model.input.Instantiate()
    # What is wrong here is told before the model is built, which may take minutes.
    train_input.TrainBatches()
    test_input.EvalBatches()
    directory = RunDirectory(os.path.expanduser(logdir), request.name)
    tell_inputs(model.task, train_input)
    task = model.task.Instantiate()
    with lost_workers_named():
        train(
            task,
            train_input,
            test_input,
            directory,
            model.ToText(),
            log=_log_after(note),
            profile_step=profile_step,
        )


def decode_data_set(
    request: ModelRequest, logdir: str, split: str, checkpoint: str | None = None
) -> None:
    """Translates a data set of a model with weights that it was trained to.

    Args:
        request: the model.
        logdir: of the run that trained it.
        split: the data set, such as `Test`.
        checkpoint: the name of one of the run's; None: the newest.
    """
    model = request.params(split)
    note = _place(model, request)
    data = model.input.Instantiate()
    # What is wrong here is told before the model is built, which may take minutes.
    sentences = check_decode_input(data)
    directory = open_run(os.path.expanduser(logdir), request.name)
    tell_inputs(model.task, data)
    task = model.task.Instantiate()
    with lost_workers_named():
        decode(task, sentences, directory, split.lower(), checkpoint, _log_after(note))


def _place(model: Params, request: ModelRequest) -> str:
    """Makes the devices ready and gives one to each stage; returns a note for users."""
    pipeline = model.task.pipeline
    placement = place_stages(pipeline, request.devices)
    pipeline.devices = initialize_devices(placement.devices, request.workers)
    return placement.note


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
