"""Runs of the trainer from a Python program or a notebook.

    run = lp.train(Toy, "/tmp/toy", devices=2, max_steps=200)
    pandas.DataFrame(run.metrics)
    run.load().classify(images)
    lp.plan(Toy, "8xA100", price=1.10)

The class of a model may be defined anywhere, even in a notebook's cell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import model_registry
from lingvo_pipe.cli.model_request import ModelRequest
from lingvo_pipe.cli.train_job import train_model
from lingvo_pipe.cli.use_jobs import RunUse, evaluate_data_set
from lingvo_pipe.core.checks import check_counts, is_integer
from lingvo_pipe.core.errors import UserError, UserTypeError, UserValueError
from lingvo_pipe.pipeline.devices.device_names import checked_number, parse_devices
from lingvo_pipe.planner.resources import known_devices
from lingvo_pipe.planner.resources.resources import Constraints
from lingvo_pipe.serving.trained_model import TrainedModel, load
from lingvo_pipe.tools.plan.keras_plan import keras_params
from lingvo_pipe.tools.plan.model_plan import Plan
from lingvo_pipe.tools.plan.planned_model import PlannedModel, find_devices
from lingvo_pipe.training.checkpoint.checkpoint_files import steps_in
from lingvo_pipe.training.eval.run_weights import open_run
from lingvo_pipe.training.report.html_report import write_report
from lingvo_pipe.training.run.metrics_log import read_metrics

if TYPE_CHECKING:
    import keras

# Flags in errors, and the arguments that replace them.
_ARGUMENTS = (
    (r"--model_params_override='([^\s']+)[^:']* : ([^']*)'", r'**{"\1": \2}'),
    (r"--model_params_override\b", "**overrides"),
    (r"(?<![\w-])--(\w+)=([^\s'\"]*[^\s'\".,;])", r"\1='\2'"),
    (r"(?<![\w-])--(?=\w)", ""),
)


@contextlib.contextmanager
def _naming_arguments() -> Iterator[None]:
    """Turns flags in errors into arguments."""
    try:
        yield
    except UserError as error:
        fields = error.path, error.expected, error.hint
        error.path, error.expected, error.hint = map(_as_arguments, fields)
        error.args = (_as_arguments(str(error)),)
        raise


def _as_arguments(text: str) -> str:
    for pattern, argument in _ARGUMENTS:
        text = re.sub(pattern, argument, text)
    return text


def _paths(allowed: str | Sequence[str]) -> Sequence[str]:
    return re.findall(r"[^\s,]+", allowed) if isinstance(allowed, str) else allowed


class Run:
    """A run of the trainer, finished or not.

    Args:
        logdir: the run's directory.
        model: the model's class, or its registered name; if None, the run's.
        allow_foreign: whether it may have links to folders, or files of others.

    Attributes:
        model_name: the model's registered name.

    Raises:
        ValueError: if there is no such run, or it is of another model.
    """

    @_naming_arguments()
    def __init__(
        self,
        logdir: str | Path,
        model: str | type | None = None,
        *,
        allow_foreign: bool = False,
    ) -> None:
        name = None if model is None else model_registry.GetName(model)
        path = os.path.expanduser(logdir)
        self._directory = open_run(path, name, allow_foreign=allow_foreign)
        self._model, self._allow_foreign = name, allow_foreign
        self.logdir, self.model_name = self._directory.path, self._directory.model_name

    def __repr__(self) -> str:
        return f"Run({str(self.logdir)!r}, {self.model_name!r})"

    @property
    def step(self) -> int:
        """The step of the newest checkpoint, even a damaged one, or 0."""
        return max(steps_in(self._directory.checkpoints_path), default=0)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics so far: a row for each report, with `step` and `split`.

        Raises:
            ValueError: if a line of the run's metrics.jsonl is damaged.
        """
        return read_metrics(self.logdir)

    @_naming_arguments()
    def load(self, checkpoint: str | None = None) -> TrainedModel:
        """Returns the trained model with the weights of a checkpoint. See `lp.load`."""
        return load(
            self.logdir,
            checkpoint,
            model=self._model,
            allow_foreign=self._allow_foreign,
        )

    def report(self) -> Path:
        """Writes report.html, a page about the run, and returns the path of this file.

        Raises:
            ValueError: if one of the run's files is damaged.
        """
        return write_report(self._directory)


@_naming_arguments()
def train(
    model: str | type,
    logdir: str | Path,
    *,
    devices: int | str | Sequence[str] | None = None,
    max_steps: int | None = None,
    data_dir: str | None = None,
    dataset: str | None = None,
    init_from: str | Path | None = None,
    init_names: str | None = None,
    profile_step: int | None = None,
    allow_params_change: str | Sequence[str] = (),
    allow_foreign: bool = False,
    **overrides: Any,
) -> Run:
    """Trains a model to its last step, and evaluates it. Resumes an existing run.

    On Ctrl-C, or a notebook's stop button, the function stops the run after the current
    step, and returns it. A line says what is saved. The same call resumes the run.

    Args:
        model: the model's class, or its registered name.
        logdir: the run's directory; an existing run resumes.
        devices: a number of devices or their names, `["gpu:0", "gpu:1"]`; if None, the
            model's own.
        max_steps: number of steps; if None, the model's own.
        data_dir: folder of data sets.
        dataset: images to train on in place of the model's own.
        init_from: run, checkpoint or file that a new run's initial weights come from.
        init_names: other names there, as PATTERN=NAME;PATTERN=NAME.
        profile_step: number of a step to profile.
        allow_params_change: paths of params that may differ from the run's.
        allow_foreign: whether it may have links to folders, or files of others.
        **overrides: values of params by their paths, `**{"task.train.learning_rate":
            0.1}`.

    Raises:
        AttributeError: if a param is unknown.
        FloatingPointError: if numbers are not finite more often than params allow.
        LookupError: if the model is not registered.
        RuntimeError: if the process has fewer devices than the model needs.
        TypeError: if an argument has a wrong type.
        ValueError: if a value is wrong, or the run in the directory has other params.
    """
    request = dataclasses.replace(
        _request(model, overrides, devices, data_dir, dataset, max_steps),
        init_from=None if init_from is None else str(init_from),
        init_names=init_names,
    )
    allowed = _paths(allow_params_change)
    train_model(request, str(logdir), profile_step, allowed, allow_foreign)
    return Run(logdir, request.name, allow_foreign=allow_foreign)


@_naming_arguments()
def evaluate(
    model: str | type,
    logdir: str | Path,
    split: str = "Test",
    *,
    checkpoint: str | None = None,
    devices: int | str | Sequence[str] | None = None,
    data_dir: str | None = None,
    dataset: str | None = None,
    allow_params_change: str | Sequence[str] = (),
    allow_foreign: bool = False,
    **overrides: Any,
) -> dict[str, float]:
    """Returns metrics of a run's weights on a data set of the model.

    The metrics are also written to LOGDIR/evaler, and shown in LOGDIR/report.html.

    Args:
        model: the model's class, or its registered name.
        logdir: the run's directory.
        split: the data set, a method of the model's class.
        checkpoint: a name such as `ckpt-00000600`, or `best`; if None, the newest.
        devices: a number of devices or their names.
        data_dir: folder of data sets.
        dataset: images to evaluate on in place of the model's own.
        allow_params_change: paths of params that may differ from the run's.
        allow_foreign: whether it may have links to folders, or files of others.
        **overrides: values of params by their paths.

    Raises:
        AttributeError: if a param is unknown.
        LookupError: if the model is not registered, or has no such data set.
        ValueError: if a value is wrong, or there is no such checkpoint.
    """
    request = _request(model, overrides, devices, data_dir, dataset)
    use = RunUse(
        str(logdir),
        split,
        checkpoint,
        allowed_changes=_paths(allow_params_change),
        allow_foreign=allow_foreign,
    )
    return evaluate_data_set(request, use)


def plan(
    model: str | type | Callable[[], keras.Model],
    devices: str,
    batch_size: int | None = None,
    price: float | Sequence[float] | None = None,
    *,
    length: int | None = None,
    network_gbits: float | None = None,
    num_replicas: int | None = None,
    num_stages: int | None = None,
    num_micro_batches: int | None = None,
    schedule: str | None = None,
    recompute: str | None = None,
    offload: str | None = None,
    **overrides: Any,
) -> Plan:
    """Plans how to run a model on devices, which this machine need not have.

    The plan's text is the output of `lingvo_pipe plan`. The plan's `rows` have the same
    figures, for a DataFrame. The command's README describes the arguments.

    Args:
        model: the model's class, its registered name, or a function that returns a
            Keras model.
        devices: number and kind: `"8xA100"`, `"2x8xH100"` on two hosts. Several kinds
            in the order of the stages: `"4xA100,4xT4"`.
        batch_size: rows of a mini-batch; if None, the model's own.
        price: price of one device for an hour, or of one of each kind.
        length: the size of dimensions that a Keras model leaves open, beside the rows.
        network_gbits: gigabits per second between hosts.
        num_replicas: number of pipelines side by side; if None, the best.
        num_stages: number of devices of each pipeline.
        num_micro_batches: number of micro-batches of all replicas together.
        schedule: schedule to use.
        recompute: recomputation policy to use.
        offload: `"always"` or `"never"`; if None, the better.
        **overrides: values of params by their paths.

    Raises:
        AttributeError: if a param is unknown.
        LookupError: if the model is not registered.
        ValueError: if nothing fits, or an argument is wrong.
    """
    if batch_size is not None:
        check_counts(batch_size=batch_size)
    text: Any = devices
    if not isinstance(text, str):
        expected = 'a number and a kind of devices, such as "2xT4"'
        raise UserTypeError(path="devices", expected=expected, got=text)
    params = None
    if isinstance(model, str) or inspect.isclass(model):
        name = model_registry.GetName(model)
        if length is not None:
            expected = "None, since the model's params set its lengths"
            raise UserValueError(path="length", expected=expected, got=length)
    else:
        name = getattr(model, "__name__", "model")
        params = keras_params(model, batch_size, length)
    request = known_devices.parse_devices(devices, network_gbits, prefix="")
    return Plan(
        PlannedModel(name, batch_size=batch_size, changes=overrides, params=params),
        find_devices(request),
        Constraints(
            num_replicas,
            num_stages,
            num_micro_batches,
            schedule,
            recompute,
            offload,
            names={"num_devices": "num_stages"},
        ),
        price,
    )


def _request(
    model: str | type,
    overrides: dict[str, Any],
    devices: int | str | Sequence[str] | None,
    data_dir: str | None,
    dataset: str | None,
    max_steps: int | None = None,
) -> ModelRequest:
    if isinstance(devices, str):
        devices = parse_devices(devices, "devices")
    elif is_integer(devices):
        devices = checked_number(int(devices))
    elif devices is not None and not (isinstance(devices, Sequence) and devices):
        expected = "a number of devices, or their names"
        raise UserTypeError(path="devices", expected=expected, got=devices)
    return ModelRequest(
        name=model_registry.GetName(model),
        changes=overrides,
        data_dir=data_dir,
        dataset=dataset,
        max_steps=max_steps,
        devices=devices,
    )
