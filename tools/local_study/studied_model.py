"""A registered model as the study trains it, by one scheme or another."""

from __future__ import annotations

import dataclasses
from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.jobs import ModelRequest
from lingvo_pipe.local.blocks import Block, make_blocks
from lingvo_pipe.training.local_params import BACKPROPAGATION
from lingvo_pipe.training.local_training import with_local_losses
from tools.local_study.learning_schedule import train_for
from tools.local_study.study_rows import RowKey


@dataclasses.dataclass(frozen=True)
class StudiedModel:
    """The model, and what all its trainings have in common.

    Attributes:
        request: the model; its `max_steps` is how long each is trained.
        chunks: the number of blocks of the scheme 'chunked'.
    """

    request: ModelRequest
    chunks: int

    @property
    def num_steps(self) -> int:
        """Of each training."""
        asked = self.request.max_steps
        return self._model().task.train.max_steps if asked is None else asked

    def train_input(self, key: RowKey) -> Any:
        """What is trained on."""
        params = self._model().input
        return params.Set(batch_size=key.batch_size).Instantiate()

    def test_input(self) -> Any:
        """What is tested on."""
        return self.request.params("Test").input.Instantiate()

    def blocks(self, key: RowKey) -> list[Block]:
        """The blocks of the model's own cells."""
        num_cells = len(self._model().task.pipeline.cell_tpl)
        return make_blocks(key.scheme, num_cells, self._chunks(key))

    def task(self, key: RowKey, train_input: Any) -> InstantiableParams:
        """Params of the task, its blocks with their heads.

        On one device and in one stage, for schemes differ in what they compute, and
        not in where.

        Args:
            key: what is trained.
            train_input: on what.

        Raises:
            ValueError: if it can't be trained so.
        """
        task = self._model().task
        task.random_seed = key.seed
        task.local.Set(scheme=key.scheme, chunks=self._chunks(key))
        task.pipeline.Set(
            splits=1,
            stages_per_device=1,
            schedule="gpipe",
            recompute="never",
            devices=None,
        )
        train_for(task, self.num_steps)
        return with_local_losses(task, train_input)

    def plain_task(self, key: RowKey, train_input: Any) -> InstantiableParams:
        """Params of the same task, trained as a whole."""
        return self.task(key._replace(scheme=BACKPROPAGATION), train_input)

    def _chunks(self, key: RowKey) -> int | None:
        return self.chunks if key.scheme == "chunked" else None

    def _model(self) -> Params:
        return dataclasses.replace(self.request, max_steps=None).params("Train")
