"""A registered model, with what the study changes to train it by each scheme."""

import dataclasses
from typing import Any

from lingvo_pipe.cli.model_request import ModelRequest
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.dropout import DropPathLayer
from lingvo_pipe.local_parallelism.blocks import Block, make_blocks
from lingvo_pipe.training.task.local_training import with_local_losses
from tools.local_study.study_rows import RowKey


@dataclasses.dataclass(frozen=True)
class StudiedModel:
    """The model that the study trains, and settings of all trainings."""

    request: ModelRequest  # Its `max_steps` is the number of steps.
    chunks: int  # Number of blocks of the scheme 'chunked'.

    @property
    def num_steps(self) -> int:
        max_steps = self.request.max_steps
        return self._model().task.train.max_steps if max_steps is None else max_steps

    def train_input(self, key: RowKey) -> Any:
        return self._model().input.Set(batch_size=key.batch_size).Instantiate()

    def test_input(self) -> Any:
        return self.request.params("Test").input.Instantiate()

    def blocks(self, key: RowKey) -> list[Block]:
        """Returns the blocks into which the scheme cuts the model's cells."""
        num_cells = len(self._model().task.pipeline.cell_tpl)
        return make_blocks(key.scheme, num_cells, self._chunks(key))

    def task(self, key: RowKey, train_input: Any) -> InstantiableParams:
        """Returns params of the task in one stage, with heads for blocks' losses."""
        task = self._model().task
        task.random_seed = key.seed
        task.local.Set(scheme=key.scheme, chunks=self._chunks(key))
        task.pipeline.Set(splits=1, stages_per_device=1, devices=None)
        task.pipeline.Set(schedule="gpipe", recompute="never")
        train_for(task, self.num_steps)
        return with_local_losses(task, train_input)

    def _chunks(self, key: RowKey) -> int | None:
        return self.chunks if key.scheme == "chunked" else None

    def _model(self) -> Params:
        return dataclasses.replace(self.request, max_steps=None).params("Train")


def train_for(task_params: InstantiableParams, num_steps: int) -> None:
    """Sets a task's number of steps, and scales all params that count steps.

    Raises:
        ValueError: if the task has no number of steps, or its schedule can't be scaled.
    """
    train = task_params.train
    if train.max_steps is None:
        raise UserValueError(
            path="task.train.max_steps",
            expected="the number of steps that the learning rate is made for",
            got=None,
            hint="Set it by --model_params_override.",
        )
    factor = num_steps / train.max_steps
    train.max_steps = num_steps
    if train.lr_schedule is not None:
        _stretch(train.lr_schedule, factor)

    def stretch_drops(unused_path: str, value: Any) -> None:
        is_drop_path = getattr(value, "cls", None) is DropPathLayer
        if is_drop_path and value.num_steps is not None:
            value.num_steps = _scaled(value.num_steps, factor)

    task_params.pipeline.Visit(lambda path, value: None, exit_fn=stretch_drops)


def _stretch(schedule: Params, factor: float) -> None:
    if isinstance(schedule, InstantiableParams):
        raise UserValueError(
            path="task.train.lr_schedule",
            expected="ScheduleParams, whose steps can be scaled",
            got=schedule,
        )
    for name, value in schedule.arguments.items():
        if name == "boundaries":
            schedule.arguments[name] = [_scaled(boundary, factor) for boundary in value]
        elif name.endswith("_steps"):
            schedule.arguments[name] = _scaled(value, factor)
        elif name == "schedule":
            _stretch(value, factor)


def _scaled(num_steps: float, factor: float) -> int:
    return max(1, round(num_steps * factor))
