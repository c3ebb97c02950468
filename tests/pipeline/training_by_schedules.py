"""Trains small tasks by several schedules, each time from the initial values.

Pipelines with the same stages on the same devices are built once, and run all their
schedules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_params import make_layout
from lingvo_pipe.pipeline.schedules.by_name import V_SHAPED_NAMES
from lingvo_pipe.pipeline.schedules.csv_file import write_csv
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import Kind, Op, Schedule
from lingvo_pipe.training.optim.exponential_moving_average import make_averages
from lingvo_pipe.training.optim.learner import Learner
from tests.pipeline.small_tasks import TASKS

NUM_STEPS = 2
BATCH_SIZE = 8
NUM_MICRO_BATCHES = 4
_MAX_CACHED = 6
TWO_STAGES_PER_DEVICE = ("interleaved", "interleaved_zero_bubble", *V_SHAPED_NAMES)


def two_by_two(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns a schedule with two micro-batches forward, then both backward.

    With three devices the last one has the first stage.
    """
    order = [
        (kind, first + i)
        for first in range(0, num_micro_batches, 2)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
        for i in range(2)
    ]
    columns = [
        tuple(Op(kind, m, stage) for kind, m in order) for stage in range(num_devices)
    ]
    if num_devices == 3:
        columns.reverse()
    return Schedule(num_devices, num_micro_batches, tuple(columns))


def _recomputing(num_devices: int, num_micro_batches: int) -> Schedule:
    return recomputed(two_by_two(num_devices, num_micro_batches), "except_last")


# Schedules in files of these names.
FILES = {"plain.csv": two_by_two, "recomputing.csv": _recomputing}


def task_params(
    folder: Path,
    model: str,
    num_devices: int,
    schedule: str,
    recompute: Any,
    jit_compile: bool = False,
    num_replicas: int = 1,
    offload: Any = None,
) -> tuple[str, InstantiableParams]:
    """Returns a task's name in TASKS, and its params.

    Args:
        folder: folder for a schedule's file.
        model: a name in TASKS, of 4, 8 or 16 cells, by the number of stages. Three
            stages of a schedule in a file have 4.
        num_devices: K.
        schedule: name of a schedule, or of a file in FILES.
        recompute: see the pipeline's params.
        jit_compile: see the pipeline's params.
        num_replicas: see the pipeline's params; each has one batch shard.
        offload: see the pipeline's params.
    """
    stages_per_device = 2 if schedule in TWO_STAGES_PER_DEVICE else 1
    splits: Any = num_devices * stages_per_device
    is_small = splits in (1, 2, 4) or (splits == 3 and schedule in FILES)
    name = f"{model} of 4" if is_small else model
    if splits > 8:
        name = f"{model} of 16"
    if schedule == "1f1b" and num_devices == 3:
        splits = [1, 6, 8]  # Otherwise stages are equal.
    if schedule in FILES:
        per_replica = NUM_MICRO_BATCHES // num_replicas
        write_csv(FILES[schedule](num_devices, per_replica), folder / schedule)
        schedule = str(folder / schedule)
    p = TASKS[name].make_params().Set(name="task")
    p.pipeline.Set(
        num_micro_batches=NUM_MICRO_BATCHES,
        splits=splits,
        stages_per_device=stages_per_device,
        schedule=schedule,
        recompute=recompute,
        jit_compile=jit_compile,
        num_replicas=num_replicas,
        offload=offload,
    )
    return name, p


class Trainings:
    """Trained tasks, with a cache of the last few."""

    def __init__(self) -> None:
        self._cached: dict[Any, _Training] = {}
        self._of_one_stage: dict[Any, dict[str, bytes]] = {}

    def state_after(self, name: str, p: InstantiableParams) -> dict[str, bytes]:
        """Returns weights, slots and averages by path after training a task."""
        layout = make_layout(p.pipeline, "task/pipeline")
        others = p.pipeline.jit_compile, p.pipeline.num_batch_shards
        of_layout = layout.boundaries, layout.replicas, layout.recomputed
        key = name, str([of_layout, layout.offloaded, others])
        if key not in self._cached:
            if len(self._cached) == _MAX_CACHED:
                self._cached.pop(next(iter(self._cached)))
            self._cached[key] = _Training(p, TASKS[name].make_batch)
        return self._cached[key].state_after(layout.schedule)

    def state_of_one_stage(self, name: str, **pipeline: Any) -> dict[str, bytes]:
        """Returns the state with one stage that recomputes nothing."""
        key = name, *pipeline.items()
        if key not in self._of_one_stage:
            p = TASKS[name].make_params().Set(name="task")
            p.pipeline.Set(
                num_micro_batches=NUM_MICRO_BATCHES, recompute="never", **pipeline
            )
            self._of_one_stage[key] = self.state_after(name, p)
        return self._of_one_stage[key]


class _Training:
    """One task, run eagerly, because the graph of an update takes long to build."""

    def __init__(self, params: InstantiableParams, make_batch: Any):
        self._task = task = params.Instantiate()
        trained, every = task.TrainedVariables(), task.VariablePaths()
        p = task.params.train
        self._learner = Learner(p, trained)
        averages = make_averages(p, trained, every)
        assert averages is not None, "TASKS have some"
        self._averages = averages
        self._batches = [make_batch(BATCH_SIZE, seed) for seed in range(NUM_STEPS)]
        self._state: dict[str, tf.Variable] = {
            **every,
            **self._learner.State(),
            **self._averages.State(),
        }
        self._first = {path: v.numpy() for path, v in self._state.items()}
        self._paths = {variable.ref(): path for path, variable in every.items()}

    def state_after(self, schedule: Schedule) -> dict[str, bytes]:
        for path, variable in self._state.items():
            variable.assign(self._first[path])
        for step, batch in enumerate(self._batches):
            self._step(step, batch, schedule)
        return {path: v.numpy().tobytes() for path, v in self._state.items()}

    def _step(self, step: int, batch: NestedMap, schedule: Schedule) -> None:
        task = self._task
        with ForwardContext(step=tf.constant(step, tf.int64)):
            result = task.pipeline.ComputeGradients(
                task.Values().pipeline,
                task.PipelineInputs(batch),
                task.LossTargets(batch),
                task.ComputeLoss,
                schedule,
            )
        pairs = zip(
            tf.nest.flatten(task.vars.pipeline),
            tf.nest.flatten(result.gradients),
            strict=True,
        )
        gradients = {self._paths[v.ref()]: g for v, g in pairs if g is not None}
        self._learner.Apply(gradients)
        task.PostTrainingStepUpdate(NestedMap(pipeline=result.accumulated))
        self._averages.Update(tf.constant(step + 1))
