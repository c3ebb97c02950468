"""Translation of a data set, B sentences in a batch, with N hypotheses for each."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import (
    UserNumberError,
    UserTypeError,
    UserValueError,
    Words,
)
from lingvo_pipe.core.nests import on_this_host
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.debug.diagnosis import naming, naming_reads
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import DecodingTask, Sequences, Vocabulary


@dataclass(frozen=True)
class Hypothesis:
    """A model's translation and its score."""

    text: str
    score: float


@dataclass(frozen=True)
class Translation:
    """A sentence and its translations."""

    source: str
    reference: str  # The data's translation.
    hypotheses: tuple[Hypothesis, ...]  # The best first.
    source_language: str
    target_language: str
    position: int  # The sentence's position in the data.


class Decoder:
    """A translator of a data set's batches, with the weights of a DecodingTask.

    Raises:
        ValueError: if the task is not a DecodingTask.
    """

    def __init__(self, task: BaseTask, vocabulary: Vocabulary):
        decode = decode_method(task)

        def run(batch: NestedMap) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return decoded_texts(decode, batch, batch.weight.shape[0], vocabulary)

        self._function = tf.function(run, autograph=False)

    def __call__(self, batches: Iterable[NestedMap]) -> Iterator[Translation]:
        """Yields the Translation of each sentence in `batches`, without padding rows.

        Raises:
            FloatingPointError: if a score is not finite.
        """
        for batch in naming_reads(batches):
            with naming("decoding"):
                texts, scores, lengths = (x.numpy() for x in self._function(batch))
            for row in np.flatnonzero(batch.weight):
                source = _text(batch.source_text[row])
                check_finite(source, scores[row, 0])
                candidates = zip(texts[row], scores[row], lengths[row], strict=True)
                yield Translation(
                    source=source,
                    reference=_text(batch.target_text[row]),
                    hypotheses=tuple(
                        Hypothesis(text.decode(), float(score))
                        for text, score, length in candidates
                        if length
                    ),
                    source_language=_text(batch.source_language[row]),
                    target_language=_text(batch.target_language[row]),
                    position=int(batch.place[row]),
                )


# (batch, first ids, end token) -> sequences
Decode = Callable[[NestedMap, tf.Tensor, int], Sequences]


def decode_method(task: BaseTask) -> Decode:
    """Returns a task's method `Decode`. See `method_of`."""
    return method_of(task, DecodingTask, "Decode", "a TranslationTask")


def method_of(task: BaseTask, kind: type, name: str, example: str) -> Callable:
    """Returns a task's method, with the task's weights in place of `theta`.

    Raises:
        ValueError: if the task is not of the `kind`. The error names an `example`.
    """
    if not isinstance(task, kind):
        raise UserValueError(
            path="task",
            expected=f"one with a method {name}, such as {example}",
            got=Words(type(task).__name__),
        )
    method = getattr(task, name)
    return lambda *arguments: method(task.Values(), *arguments)


def listed_texts(texts: Any, path: str) -> list[str]:
    """Returns the texts in the argument `path`, any iterable that is no dict.

    Raises:
        TypeError: if it is something else.
        ValueError: if a text cannot be written in UTF-8.
    """
    listed: list[Any] = [None]
    with contextlib.suppress(TypeError):  # Raised unless it is iterable.
        listed = listed if isinstance(texts, (str, Mapping)) else list(texts)
    if not all(isinstance(x, str) for x in listed):
        raise UserTypeError(path=path, expected="a list of texts", got=texts)
    for i, text in enumerate(listed):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            expected = "characters that UTF-8 has"
            raise UserValueError(
                path=f"{path}[{i}]", expected=expected, got=text
            ) from error
    return listed


def decoded_texts(
    decode: Decode,
    input_batch: NestedMap,
    num_rows: int | tf.Tensor,
    vocabulary: Vocabulary,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Decodes `num_rows` rows. Returns texts, scores and lengths, each `[B, N]`."""
    first_ids = tf.fill([num_rows], vocabulary.bos_id)
    with ForwardContext(do_eval=True, vocabulary_size=vocabulary.size):
        sequences = decode(input_batch, first_ids, vocabulary.eos_id)
    with tf.device("/CPU:0"):
        rows = tf.reshape(sequences.ids, [-1, sequences.ids.shape[-1]])
        texts = tf.reshape(vocabulary.Detokenize(rows), tf.shape(sequences.lengths))
    return on_this_host((texts, sequences.scores, sequences.lengths))


def check_finite(source: str, score: float) -> None:
    """Raises FloatingPointError unless the best score of a sentence is finite."""
    if not np.isfinite(score):
        raise UserNumberError(
            path="score",
            expected=f"a finite one for {source[:60]!r}",
            got=float(score),
            hint="Check the checkpoint's weights, or decode with an earlier one.",
        )


def _text(value: tf.Tensor) -> str:
    return value.numpy().decode()
