"""A registered model with the user's changes, and the devices for its stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import tensorflow as tf
import tqdm

import model_registry
from lingvo_pipe.cli.auto_params import extract_from_run
from lingvo_pipe.cli.param_values import check_values
from lingvo_pipe.core.checks import is_count
from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.old_names import current_path
from lingvo_pipe.hyperparams.text_entries import parse_entry, split_entries
from lingvo_pipe.pipeline.devices.cluster import workers_note
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.stage_devices import (
    initialize_devices,
    unused_note,
)
from lingvo_pipe.training.loop.save_times import SaveRequest
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.task.placement import place_stages

if TYPE_CHECKING:
    from lingvo_pipe.cli.elastic_job import ElasticJob

_PARAM_OF_FLAG = {
    "data_dir": "input.data_dir",
    "dataset": "input.dataset",
    "max_steps": "task.train.max_steps",
    "init_from": "task.train.init_from_checkpoint_override",
    "init_names": "task.train.init_from_checkpoint_names",
}
# TensorFlow looks for GPUs now, while its messages about missing ones are hidden.
tf.config.list_physical_devices("GPU")


@dataclass(frozen=True)
class ModelRequest:
    """The name of a registered model, and the user's changes of the model's params.

    An attribute that is None or empty changes nothing.
    """

    name: str
    imports: Sequence[str] = ()  # Packages to import first, which register models.
    override: str = ""  # Params to change, separated by `;`.
    changes: Mapping[str, Any] = field(default_factory=dict)  # Values by path.
    data_dir: str | None = None
    dataset: str | None = None
    max_steps: int | None = None
    init_from: str | None = None
    init_names: str | None = None
    devices: int | Sequence[str] | None = None  # A number or names.
    cluster: Cluster | None = None  # The cluster whose workers have the devices.
    await_workers: Callable[[], None] | None = None  # See `initialize_devices`.
    elastic: ElasticJob | None = None  # Chooses devices, if the job is elastic.
    save_request: SaveRequest | None = None  # Of another thread, for a checkpoint.
    restart_cause: str = ""  # Why this process restarted itself, as sentences.

    def params(self, dataset: str) -> Params:
        """Returns the changed params of the model, with its input for `dataset`.

        Raises:
            ValueError: if a change is not possible.
        """
        model_registry.ImportModels(self.imports)
        model = model_registry.GetParams(self.name, dataset)
        data_dir = self.data_dir and os.path.expanduser(self.data_dir)
        for name, value in {"data_dir": data_dir, "dataset": self.dataset}.items():
            if value is not None and name not in model.input:
                raise UserValueError(
                    path=f"--{name}",
                    expected=f"an input with {name} for {self.name}",
                    got=Words(model.input.cls.__name__),
                )
        if data_dir is not None:
            if not os.path.isdir(data_dir):
                raise UserValueError(
                    path="--data_dir",
                    expected="an existing folder, of data sets",
                    got=data_dir,
                    hint="Correct it, or prepare data there by lingvo_pipe prepare.",
                )
            model.input.data_dir = data_dir
        if self.dataset is not None and hasattr(model.input.cls, "ReplaceDataset"):
            model.input.cls.ReplaceDataset(model.input, self.dataset)
        elif self.dataset is not None:
            model.input.dataset = self.dataset
        model.FromText(self.override, separator=";").Set(**self.changes)
        self._check_set_once()
        check_values(model)
        if self.max_steps is not None:
            model.task.train.max_steps = self.max_steps
        if self.init_from is not None:
            if not self.init_from:  # Such as a variable of a shell that is not set.
                raise UserValueError(
                    path="--init_from",
                    expected="a run, one of its checkpoints or a file of weights",
                    got=self.init_from,
                )
            model.task.train.init_from_checkpoint_override = self.init_from
        if self.init_names is not None:
            model.task.train.init_from_checkpoint_names = self.init_names
        return model

    def _check_set_once(self) -> None:
        entries = map(parse_entry, split_entries(self.override, ";"))
        changed = {*map(current_path, self.changes), *(x.path for x in entries)}
        for name, path in _PARAM_OF_FLAG.items():
            if getattr(self, name) is not None and path in changed:
                raise UserValueError(
                    path=f"--{name}",
                    expected=f"no other change of {path}, which it sets",
                    got=getattr(self, name),
                )


def place_model(
    model: Params,
    request: ModelRequest,
    open_run: Callable[[], RunDirectory] | None = None,
) -> str:
    """Chooses and initializes the devices for the stages of `model`.

    Sets the pipeline's `devices`, and returns a note for the user. Params that are
    `auto` get the values of the run whose directory `open_run` returns, if given.
    """
    pipeline = model.task.pipeline
    if open_run is not None:
        extract_from_run(pipeline, open_run, request.devices)
    if request.elastic is not None:
        return _place_elastic(model, request.elastic, request.devices)
    placement = place_stages(pipeline, request.devices)
    pipeline.devices = initialize_devices(
        placement.devices, request.cluster, request.await_workers
    )
    return joined(workers_note(), unused_note(pipeline.devices), placement.note)


def _place_elastic(
    model: Params, job: ElasticJob, flag: int | Sequence[str] | None
) -> str:
    pipeline = model.task.pipeline
    chosen = job.choose(pipeline, flag)
    placement = place_stages(pipeline, chosen.devices)
    pipeline.devices = initialize_devices(placement.devices, chosen.cluster)
    job.use(pipeline.devices, on_hosts=model.task.train.offload_slots)
    return joined(
        workers_note(), unused_note(pipeline.devices), chosen.note or placement.note
    )


def check_batch(model: Params) -> None:
    """Raises ValueError if a training batch has fewer examples than micro-batches."""
    number = model.task.pipeline.num_micro_batches
    size = model.input.batch_size if "batch_size" in model.input else None
    if is_count(number) and is_count(size) and size < number:
        raise UserValueError(
            path="task.pipeline.num_micro_batches",
            expected=f"at most input.batch_size, {size}",
            got=number,
        )


def joined(*notes: str) -> str:
    """Returns the notes that are not empty, separated by newlines."""
    return "\n".join(filter(None, notes))


def log_after(note: str, file: TextIO | None = None) -> Callable[[str], None]:
    """Returns a function that prints lines. The first call prints `note` first."""
    waiting = [note] if note else []

    def log(line: str) -> None:
        for text in (*waiting, line):
            tqdm.tqdm.write(text, file)
        waiting.clear()

    return log
