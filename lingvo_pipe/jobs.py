"""What the trainer does: finds a model, places it on devices, trains or shows it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.devices import initialize_devices, parse_devices
from lingvo_pipe.pipeline.partition import resolve_ends
from lingvo_pipe.training.inspect_model import describe
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
        max_steps: number of steps to train for; None: the model's own.
        devices: as for `parse_devices`; None: as many as the model has stages.
    """

    name: str
    imports: Sequence[str] = ()
    override: str = ""
    max_steps: int | None = None
    devices: str | None = None

    def params(self, dataset: str) -> Params:
        """The model's params with the changes, its input being that of `dataset`."""
        model_registry.ImportModels(self.imports)
        model = model_registry.GetParams(self.name, dataset)
        model.FromText(self.override, separator=";")
        if self.max_steps is not None:
            model.task.train.max_steps = self.max_steps
        return model


def list_models(imports: Sequence[str]) -> list[str]:
    """Names of all registered models, those of the packages `imports` included."""
    model_registry.ImportAll()
    model_registry.ImportModels(imports)
    return model_registry.ListModels()


def inspect_model(request: ModelRequest) -> str:
    """Describes layers, shapes, parameters and stages of a model."""
    model = request.params("Train")
    _place(model, request.devices)
    return describe(model.task, model.input.Instantiate())


def train_model(request: ModelRequest, logdir: str) -> None:
    """Trains a model to its last step, or goes on with it, and evaluates it."""
    model, test_model = request.params("Train"), request.params("Test")
    _place(model, request.devices)
    train_input = model.input.Instantiate()
    test_input = test_model.input.Instantiate()
    task = model.task.Instantiate()
    directory = RunDirectory(os.path.expanduser(logdir), request.name)
    train(task, train_input, test_input, directory, model.ToText())


def _place(model: Params, devices: str | None) -> None:
    """Makes the devices ready and gives one to each stage."""
    pipeline = model.task.pipeline
    wanted = None if devices is None else parse_devices(devices)
    if wanted is not None and isinstance(pipeline.splits, int):
        pipeline.splits = wanted if isinstance(wanted, int) else len(wanted)
    num_stages = len(resolve_ends(pipeline.splits, len(pipeline.cell_tpl)))
    pipeline.devices = initialize_devices(num_stages if wanted is None else wanted)
