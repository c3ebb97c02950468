"""The job that trains a model."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import model_registry
from lingvo_pipe.cli.auto_params import AutoParams
from lingvo_pipe.cli.elastic_devices import check_elastic
from lingvo_pipe.cli.model_request import (
    ModelRequest,
    check_batch,
    joined,
    log_after,
    place_model,
)
from lingvo_pipe.cli.param_values import naming_override
from lingvo_pipe.core.activity import activity
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.planner.measured.expected_step import expected_step
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.profiling.step_profile import PlannedStep
from lingvo_pipe.training.profiling.step_profiler import check_profile_step
from lingvo_pipe.training.run.changed_params import check_allowed
from lingvo_pipe.training.run.run_classes import class_names_warning
from lingvo_pipe.training.run.run_directory import RunDirectory
from lingvo_pipe.training.run.run_parts import read_parts
from lingvo_pipe.training.run.run_vocabulary import (
    check_num_tokens,
    check_one_vocabulary,
)
from lingvo_pipe.training.task.image_checks import labels_explained
from lingvo_pipe.training.task.input_checks import (
    checked_batches,
    same_data_warning,
)
from lingvo_pipe.training.task.local_training import with_local_losses
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs


def train_model(
    request: ModelRequest,
    logdir: str,
    profile_step: int | None = None,
    allowed_changes: Sequence[str] = (),
    allow_foreign: bool = False,
) -> bool:
    """Trains and evaluates a model, or resumes its run in `logdir`.

    Returns whether the run has ended, and no signal has stopped it before.
    """
    with naming_override(request.override):
        inputs, run = _build(
            request, logdir, profile_step, allowed_changes, allow_foreign
        )
    with labels_explained(*inputs):
        return bool(run(building=naming_override(request.override)))


def _build(
    request: ModelRequest,
    logdir: str,
    profile_step: int | None,
    allowed_changes: Sequence[str],
    allow_foreign: bool,
) -> tuple[tuple[Any, Any], Callable[..., dict[str, float]]]:
    """Returns both inputs, and a function that trains, which takes only `building`."""
    model, test_model = request.params("Train"), request.params("Test")
    check_batch(model)
    path = os.path.expanduser(logdir)
    pipeline = model.task.pipeline
    if request.elastic is not None:
        check_elastic(pipeline)
        before = RunDirectory(path, request.name, allow_foreign)
        on_hosts = model.task.train.offload_slots
        request.elastic.resume(read_parts(before.parts_path), on_hosts)
    auto = AutoParams(pipeline, lambda: RunDirectory(path, request.name, allow_foreign))
    note = place_model(model, request)
    train_input = model.input.Instantiate()
    test_input = test_model.input.Instantiate()
    # Checked first, because planning and building may take minutes.
    checked_batches(train_input, "TrainBatches")
    checked_batches(test_input, "EvalBatches")
    for data in (train_input, test_input):
        model.task.cls.CheckInput(model.task, data)
    check_one_vocabulary(train_input, test_input)
    check_num_tokens([*pipeline.before_tpl, *pipeline.cell_tpl], train_input)
    if profile_step is not None:
        check_profile_step(profile_step, model.task.train.max_steps)
    directory = RunDirectory(path, request.name, allow_foreign)
    if allowed_changes:  # A model of a thousand layers has a text of megabytes.
        check_allowed(allowed_changes, model.ToText(), directory.read_params())
    note = joined(
        note,
        _same_data_warning(request.name, model.input, test_model.input),
        class_names_warning(train_input, test_input),
        auto.resolve(model, train_input, pipeline.devices),
    )
    configure_inputs(model.task, train_input)
    with activity("building the model"):
        task = with_local_losses(model.task, train_input).Instantiate()
    log, planned = log_after(joined(note, getattr(train_input, "note", ""))), None
    if profile_step is not None:
        planned = planned_for_profile(
            model, task.pipeline, train_input, log, auto.planned
        )
    run = functools.partial(
        train,
        task,
        train_input,
        test_input,
        directory,
        model.ToText(),
        log,
        profile_step,
        allowed_changes,
        planned,
        restart_cause=request.restart_cause,
        save_request=request.save_request,
    )
    return (train_input, test_input), run


def _same_data_warning(name: str, *inputs: Params) -> str:
    model = model_registry.GetClass(name)()
    # Texts, since both methods may return the same Params.
    registered = [data_set().ToText() for data_set in (model.Train, model.Test)]
    return same_data_warning(registered, [p.ToText() for p in inputs])


def planned_for_profile(
    model: Params,
    pipeline: PipeliningLayer,
    data: Any,
    log: Callable[[str], None],
    planned: PlannedStep | None = None,
) -> PlannedStep | None:
    """Returns the planner's prediction of a step, or logs why there is none.

    `planned` is its prediction if params were `auto`. Nothing is measured again then.
    """
    if model.task.train.steps_per_loop > 1:
        log(
            "The step is profiled without a plan: one of several steps in a call is "
            "run by another schedule. Set task.train.steps_per_loop to 1 for a plan."
        )
        return None
    if planned is not None:
        return planned
    batch_size, devices = model.input.batch_size, model.task.pipeline.devices
    try:
        return expected_step(
            model.task, pipeline, data.element_spec, batch_size, devices
        )
    except (ValueError, tf.errors.OpError) as error:
        log(f"The step is profiled without the planner's prediction: {error}")
        return None
