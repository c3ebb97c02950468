"""One training of the study."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.evaluation import Evaluation
from lingvo_pipe.training.local_params import BACKPROPAGATION
from lingvo_pipe.training.train_step import TrainStep
from tools.local_study.model_shape import ModelShape
from tools.local_study.similarity import GradientSimilarity
from tools.local_study.studied_model import StudiedModel
from tools.local_study.study_rows import Record, Row, RowKey, Similarity


def train_row(
    model: StudiedModel,
    key: RowKey,
    record_every: int,
    moments: Collection[int],
) -> Row:
    """Trains a model, with its own learner, from its first values to its last step.

    Args:
        model: the model.
        key: by which scheme, and on how large batches.
        record_every: steps from record to record; there is one before the first step,
            and one after the last.
        moments: numbers of steps after which gradients are compared, on the batch of
            the next step; none is the last.

    Raises:
        ValueError: if the model can't be trained so, or there are too few batches.
        FloatingPointError: if a step's loss or gradients are not finite.
    """
    begin = time.monotonic()
    train_input = model.train_input(key)
    batches = train_input.TrainBatches()
    shape = ModelShape(
        model.task(key, train_input), batches.element_spec, model.blocks(key)
    )
    training = _Training(model, key, train_input, batches.element_spec)
    next_batches = iter(batches)
    for step in range(model.num_steps):
        batch = next(next_batches, None)
        if batch is None:
            raise ValueError(
                f"TrainBatches must give a batch for each of {model.num_steps} steps; "
                f"with {key.name} it ended after {step}. Lower --steps."
            )
        if step % record_every == 0:
            training.record(step)
        if step in moments:
            training.compare(step, batch)
        training.step(batch)
    training.record(model.num_steps)
    return Row(
        key,
        shape.block_costs(),
        shape.boundaries(),
        training.records,
        training.similarities,
        time.monotonic() - begin,
    )


class _Training:
    """A task in training, and what was found of it so far."""

    def __init__(
        self, model: StudiedModel, key: RowKey, train_input: Any, element_spec: Any
    ):
        task = model.task(key, train_input).Instantiate()
        self.records: list[Record] = []
        self.similarities: list[Similarity] = []
        self._step = TrainStep(task)
        self._step.Trace(element_spec)
        self._test_input = model.test_input()
        self._evaluation = Evaluation(task, self._step.EvalValues)
        self._losses: list[float] = []
        self._similarity = None
        if key.scheme != BACKPROPAGATION:
            plain = model.plain_task(key, train_input).Instantiate()
            self._similarity = GradientSimilarity(task, plain)

    def step(self, batch: NestedMap) -> None:
        """Trains on a batch."""
        self._losses.append(float(self._step(batch).loss[0]))

    def record(self, step: int) -> None:
        """Evaluates after so many steps."""
        losses, self._losses = self._losses, []
        mean = sum(losses) / len(losses) if losses else None
        test = self._evaluation(self._test_batches())
        self.records.append(Record(step, mean, test))

    def compare(self, step: int, batch: NestedMap) -> None:
        """Compares gradients, of blocks that have losses of their own."""
        if self._similarity is not None:
            self.similarities.append(self._similarity(step, batch))

    def _test_batches(self) -> Iterator[NestedMap]:
        return iter(self._test_input.EvalBatches())
