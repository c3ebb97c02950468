"""The loop around the training step: batches in, reports and checkpoints out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
import tqdm

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.checkpoints import Checkpointer
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.init_from_checkpoint import init_from_checkpoint
from lingvo_pipe.training.metrics_log import MetricsLog, read_metrics
from lingvo_pipe.training.progress import Progress
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_vocabulary import check_vocabulary, keep_vocabulary
from lingvo_pipe.training.step_profiler import StepProfiler, check_profile_step
from lingvo_pipe.training.train_step import TrainStep


def train(
    task: BaseTask,
    train_input: Any,
    test_input: Any,
    directory: RunDirectory,
    params_text: str,
    log: Callable[[str], None] = tqdm.tqdm.write,
    profile_step: int | None = None,
) -> dict[str, float]:
    """Trains a task to its `max_steps` and evaluates it.

    Goes on from the newest checkpoint in `directory` that can be read. Each step is a
    function of the state in the checkpoint and of the step's number, so that a run that
    was killed and resumed ends in the same bytes as one that was not.

    Nothing is written before params, checkpoint and batches are known to fit together.

    Args:
        task: the task, just instantiated.
        train_input: has `TrainBatches(start_step)` and `params.batch_size`.
        test_input: has `EvalBatches()`.
        directory: where the run is kept.
        params_text: all params of the run, to be kept there.
        log: takes a line of text for the user, while a bar may be shown.
        profile_step: the step to profile, if any; see `StepProfiler`.

    Returns:
        The last evaluation's metrics.

    Raises:
        ValueError: if the params can't be used, the batches don't fit the model or end
            too soon, or the checkpoint lies beyond max_steps or is that of another
            vocabulary.
        FloatingPointError: if the loss, a gradient or a variable to be saved is not
            finite; the last checkpoint stays.
    """
    p = task.params.train
    _check_numbers(task)
    if profile_step is not None:
        check_profile_step(profile_step, p.max_steps)
    step = TrainStep(task)
    checkpointer = Checkpointer(
        directory.checkpoints_path, step.State(), p.keep_checkpoints, log
    )
    restored = checkpointer.restore()
    start = restored or 0
    if start > p.max_steps:
        raise ValueError(
            f"max_steps must not lie before the newest checkpoint, of step {start} in "
            f"{directory.path}; got {p.max_steps}. Raise --max_steps or use another "
            "--logdir."
        )
    is_told = bool(p.init_from_checkpoint_rules or p.init_from_checkpoint_override)
    if restored is not None:
        check_vocabulary(directory.path, train_input)
    takes_first_values = restored is None and is_told
    if takes_first_values:
        init_from_checkpoint(p, task.VariablePaths(), log)
        step.StartAveraging()
    evaluation = Evaluation(task, step.EvalValues)
    batches = train_input.TrainBatches(start)
    step.Trace(batches.element_spec)
    evaluation.Trace(test_input.EvalBatches().element_spec)
    directory.write_params(params_text)
    keep_vocabulary(directory.path, train_input)
    log(_describe(task))
    if takes_first_values:
        # Killed from here on, the run needs the other run's checkpoint no more.
        checkpointer.save(0)
    if restored is not None:
        finished = (
            ", the last: raise --max_steps to go on" if start == p.max_steps else ""
        )
        log(f"Resumed from step {start}{finished}.")
    with MetricsLog(directory.path, resume_step=start) as metrics_log:

        def evaluate(at_step: int) -> dict[str, float]:
            draws = task.params.eval.pictures
            pictures = task.MakePictures(test_input) if draws else None
            metrics = evaluation(test_input.EvalBatches(), pictures)
            # A run that had ended before says the same again.
            if _last_line(directory) != {"step": at_step, "split": "test", **metrics}:
                metrics_log.write(at_step, "test", metrics)
                if pictures is not None:
                    metrics_log.write_pictures(at_step, "test", pictures.Draw())
            log(f"step {at_step}: test {_text(metrics)}")
            return metrics

        profiler = None
        if profile_step is not None:
            profiler = StepProfiler(
                task.pipeline, profile_step, start, directory, metrics_log, log
            )
        _run_steps(
            task.params,
            step,
            zip(range(start + 1, p.max_steps + 1), batches, strict=False),
            Progress(p.max_steps, train_input.params.batch_size, start),
            metrics_log,
            checkpointer,
            evaluate,
            profiler,
        )
        _check_all_trained(step, p.max_steps)
        return evaluate(p.max_steps)


def _run_steps(
    task_params: Params,
    step: TrainStep,
    batches: Iterable[tuple[int, NestedMap]],
    progress: Progress,
    metrics_log: MetricsLog,
    checkpointer: Checkpointer,
    evaluate: Callable[[int], Any],
    profiler: StepProfiler | None,
) -> None:
    """Trains on batches that come with the number of the step they make."""
    p, eval_interval = task_params.train, task_params.eval.interval_steps
    with progress:
        for n, batch in batches:
            metrics = _means(_trained(step, batch))
            if profiler:
                profiler.after_step(n, step.Times)
            is_last = n == p.max_steps
            if is_last or n % p.report_interval_steps == 0:
                progress.report(n, metrics["loss"])
                metrics_log.write(n, "train", metrics)
            if eval_interval and n % eval_interval == 0 and not is_last:
                evaluate(n)
            # Last, so that whatever a checkpoint's step has reported is on file.
            if is_last or n % p.save_interval_steps == 0:
                _check_finite_state(n, step.State())
                checkpointer.save(n)


def _describe(task: BaseTask) -> str:
    pipeline = task.pipeline
    devices = map(short_name, pipeline.devices)
    num_trained = _num_parameters(task.TrainedVariables().values())
    every = task.VariablePaths().values()
    num_frozen = _num_parameters(v for v in every if v.trainable) - num_trained
    frozen = f" and {num_frozen:,} frozen" if num_frozen else ""
    return (
        f"parameters: {num_trained:,}{frozen}; stages: {pipeline.num_stages} "
        f"({', '.join(devices)}); micro-batches: {pipeline.params.num_micro_batches}"
    )


def _num_parameters(variables: Iterable[tf.Variable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def _last_line(directory: RunDirectory) -> dict[str, Any]:
    lines = read_metrics(directory.path)
    return lines[-1] if lines else {}


def _means(metrics: NestedMap) -> dict[str, float]:
    return {name: float(mean) for name, (mean, _) in metrics.items()}


def _text(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _check_all_trained(step: TrainStep, max_steps: int) -> None:
    trained = int(step.global_step)
    if trained < max_steps:
        raise ValueError(
            f"TrainBatches must give a batch for each of {max_steps} steps; it ended "
            f"after step {trained}. Repeat the data, or lower --max_steps."
        )


_NOT_FINITE = (
    "The last checkpoint is kept; lower task.train.learning_rate or set "
    "task.train.clip_gradient_norm_to_value, and start again to go on from it."
)


def _trained(step: TrainStep, batch: NestedMap) -> NestedMap:
    """Trains on a batch; says more of a step that can't be made."""
    try:
        return step(batch)
    except FloatingPointError as error:
        raise FloatingPointError(f"{error} {_NOT_FINITE}") from error


def _check_finite_state(step: int, state: Mapping[str, tf.Variable]) -> None:
    """Keeps checkpoints that can't be gone on from out of the directory."""
    wrong = [
        name
        for name, variable in state.items()
        if variable.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(variable))
    ]
    if wrong:
        raise FloatingPointError(
            f"Variables must stay finite; after step {step} {len(wrong)} are not, the "
            f"first of them {wrong[0]}. {_NOT_FINITE}"
        )


def _check_numbers(task: BaseTask) -> None:
    p = task.params.train
    numbers = {
        "task.train.max_steps": p.max_steps,
        "task.train.save_interval_steps": p.save_interval_steps,
        "task.train.report_interval_steps": p.report_interval_steps,
        "task.train.keep_checkpoints": p.keep_checkpoints,
    }
    if task.params.eval.interval_steps is not None:
        numbers["task.eval.interval_steps"] = task.params.eval.interval_steps
    wrong = [
        f"{name} is {value!r}"
        for name, value in numbers.items()
        if not isinstance(value, int) or value < 1
    ]
    if wrong:
        raise ValueError(
            f"Numbers of steps and checkpoints must be integers of at least 1; "
            f"{', '.join(wrong)}. Set them in the model's Task or by "
            "--model_params_override."
        )
