"""Continuous batches: a row whose text is finished takes the next prompt.

    call     0        1        2        3         a to e: prompts, a token each
    row 0 | a a a a  a a . .  d d d d  d d . .    .: the row has nothing to do
    row 1 | b b b .  c c c c  c c c .  e e e .

Each call continues all rows by some tokens. Between two calls the finished rows take
waiting prompts, the longest first, so that no long text is left for the end. Texts of
similar lengths share the rows. States of past tokens stay on their devices from call to
call.

Shapes: K prompts, B rows, T tokens of the longest text.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from lingvo_pipe.core.nests import spec_of
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.decode.decoder import check_finite, method_of
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import (
    GeneratingTask,
    Sampling,
    TextRows,
    Vocabulary,
)

# More tokens in a call cost less time between calls, but leave finished rows idle.
_TOKENS_PER_CALL = 16
_NONE = -1  # The number of a row that has no text.


class ContinuousBatch:
    """Rows in which a GeneratingTask continues texts, with the task's weights."""

    def __init__(
        self,
        task: BaseTask,
        batch_size: int,
        vocabulary: Vocabulary,
        settings: Sampling,
        num_groups: int | None = None,
    ) -> None:
        """Traces the functions that continue rows.

        There are at most `batch_size` rows. `settings` are specs. If `num_groups` is
        None, there is a group for each device.

        Raises:
            ValueError: if the task is not a GeneratingTask.
        """
        self._batch_size, self._eos_id = batch_size, vocabulary.eos_id
        example = "a LanguageModelTask"
        begin = method_of(task, GeneratingTask, "TextStates", example)
        extend = method_of(task, GeneratingTask, "ContinueTexts", example)

        def first_states(num_rows: tf.Tensor, num_tokens: tf.Tensor) -> Any:
            return begin(num_rows, num_tokens, num_groups)

        def continued(rows: TextRows, states: Any, sampling: Sampling) -> Any:
            with ForwardContext(do_eval=True, vocabulary_size=vocabulary.size):
                return extend(rows, states, sampling, self._eos_id, _TOKENS_PER_CALL)

        number, numbers = tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.int32)
        self._first_states = _traced(first_states, number, number)
        outputs = self._first_states.structured_outputs
        states = tf.nest.map_structure(spec_of, outputs)
        rows = TextRows(tf.TensorSpec([None, None], tf.int32), *[numbers] * 4)
        self._continued = _traced(continued, rows, states, settings)

    def __call__(self, prompts: NestedMap, sampling: Sampling) -> np.ndarray:
        """Returns the prompts' tokens and what follows them, int32 `[K, T]`.

        A text depends on its prompt, its number in 0 to K - 1, and the settings, which
        are tensors. The prompts are from the input's `PromptBatch`.

        Raises:
            FloatingPointError: if a score is not finite.
        """
        texts = _arrays(text_rows(prompts, sampling.max_tokens, self._eos_id))
        total = len(texts.ids)
        with tqdm.tqdm(total=total, unit=" texts", disable=None, leave=False) as bar:
            for numbers in length_classes(texts.lengths):
                for num_finished in self._continue(texts, numbers, sampling):
                    bar.update(num_finished)
        return texts.ids

    def _continue(
        self, texts: TextRows, numbers: list[int], sampling: Sampling
    ) -> Iterator[int]:
        """Continues these texts in place. Yields how many each call has finished."""
        waiting = numbers[::-1]
        num_rows = min(self._batch_size, len(numbers))
        num_tokens = int(texts.lengths[numbers[0]])
        texts = texts._replace(ids=texts.ids[:, :num_tokens])  # A view.
        rows = _empty_rows(num_rows, num_tokens)
        states = self._first_states(tf.constant(num_rows), tf.constant(num_tokens))
        while True:
            yield _exchange(rows, texts, waiting)
            if (rows.numbers == _NONE).all():
                return
            rows, states = self._continued(_tensors(rows), states, sampling)
            rows = _arrays(rows)


def length_classes(lengths: np.ndarray) -> Iterator[list[int]]:
    """Yields the numbers of texts by falling length, in classes of similar lengths.

    Rows have room for the longest text of a class, which is at most twice as long as
    the others. So short texts are not slowed down by a long one.
    """
    numbers: list[int] = []
    for number in np.argsort(-lengths, kind="stable").tolist():
        if numbers and 2 * lengths[number] < lengths[numbers[0]]:
            yield numbers
            numbers = []
        numbers.append(number)
    if numbers:
        yield numbers


def text_rows(prompts: NestedMap, max_tokens: int | tf.Tensor, eos_id: int) -> TextRows:
    """Returns a row for each prompt, numbered from 0, with room for the new tokens."""
    lengths = prompts.lengths
    ids = tf.pad(prompts.ids, [[0, 0], [0, max_tokens]])
    positions = tf.range(tf.shape(ids)[1])
    ids = tf.where(positions < lengths[:, tf.newaxis], ids, eos_id)
    numbers = tf.range(tf.size(lengths))
    return TextRows(ids, lengths, numbers, tf.zeros_like(lengths), lengths + max_tokens)


def _exchange(rows: TextRows, texts: TextRows, waiting: list[int]) -> int:
    """Writes finished rows to `texts`, and refills them from the end of `waiting`.

    Returns the number of finished texts.
    """
    num_finished = 0
    for row in np.flatnonzero(rows.places + 1 >= rows.lengths).tolist():
        number = int(rows.numbers[row])
        if number != _NONE:
            _copy(rows, row, texts, number)
            if not texts.lengths[number]:
                check_finite(f"prompts[{number}]", math.nan)
            num_finished += 1
        if waiting:
            _copy(texts, waiting.pop(), rows, row)
        else:
            rows.numbers[row] = _NONE
    return num_finished


def _copy(source: TextRows, row: int, target: TextRows, other_row: int) -> None:
    for field, other_field in zip(source, target, strict=True):
        other_field[other_row] = field[row]


def _empty_rows(num_rows: int, num_tokens: int) -> TextRows:
    zeros = (np.zeros(num_rows, np.int32) for _ in range(4))
    rows = TextRows(np.zeros([num_rows, num_tokens], np.int32), *zeros)
    rows.numbers[:] = _NONE
    return rows


def _arrays(rows: TextRows) -> TextRows:
    return TextRows(*(np.array(x) for x in rows))


def _tensors(rows: TextRows) -> TextRows:
    return TextRows(*map(tf.constant, rows))


def _traced(function: Any, *specs: Any) -> Any:
    return tf.function(function, autograph=False).get_concrete_function(*specs)
