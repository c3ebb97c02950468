"""Interfaces of tasks and inputs for decoding, and for images of evaluations.

Shapes: B examples in a batch, N sequences for each, T tokens at most. K is any number.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


class Sequences(Protocol):
    """Decoded sequences, N for each example, the best first and empty ones last."""

    @property
    def ids(self) -> tf.Tensor:
        """Tokens, int32 `[B, N, T]`. Each sequence includes its end token."""

    @property
    def lengths(self) -> tf.Tensor:
        """Numbers of tokens, int32 `[B, N]`, 0 for an empty sequence."""

    @property
    def scores(self) -> tf.Tensor:
        """Scores of the sequences, `[B, N]`, in descending order."""


@runtime_checkable
class DecodingTask(Protocol):
    """A task that decodes sequences."""

    def Decode(
        self,
        theta: NestedMap,
        input_batch: NestedMap,
        first_ids: tf.Tensor,
        eos_id: int,
        on_stages: bool = True,
    ) -> Sequences:
        """Returns sequences for a batch, which depend on the arguments alone.

        Args:
            theta: values in the structure of the task's `vars`.
            input_batch: batch from the input's `DecodeBatches`.
            first_ids: int32 `[B]`, the token before each sequence's first one.
            eos_id: end token.
            on_stages: whether the graph names the stages' devices. False is for an
                exported model.
        """


class Sampling(NamedTuple):
    """Settings for drawing tokens that continue texts: numbers, or tensors `[]`."""

    max_tokens: int | tf.Tensor  # Most new tokens, including the end token.
    temperature: float | tf.Tensor = 1.0  # 0 takes the likeliest token.
    top_k: int | tf.Tensor = 0  # Draws from this number of likeliest tokens; 0: all.
    top_p: float | tf.Tensor = 1.0  # Total probability of the likeliest to draw from.
    seed: int | tf.Tensor = 0


class TextRows(NamedTuple):
    """Texts in progress, one in each row: int32 tensors or arrays.

    A text is finished when `places` is `lengths - 1` or more. A text whose scores were
    not finite has length 0.
    """

    ids: Any  # [B, T], from the begin token on; end tokens follow a text.
    prompt_lengths: Any  # [B], with the begin token.
    numbers: Any  # [B], on which a row's draws depend.
    places: Any  # [B], of the token that is read next.
    lengths: Any  # [B], most tokens, or how many there are once an end token is drawn.


@runtime_checkable
class GeneratingTask(Protocol):
    """A task that continues texts."""

    def TextStates(
        self,
        theta: NestedMap,
        num_rows: int | tf.Tensor,
        num_tokens: int | tf.Tensor,
        num_groups: int | None = None,
        on_stages: bool = True,
    ) -> list[Any]:
        """Returns the states in which `ContinueTexts` begins, for each group of rows.

        B is `num_rows`, and T is `num_tokens`. If `num_groups` is None, there is one
        group for each device. `theta` and `on_stages` are as in `DecodingTask`.
        """

    def ContinueTexts(
        self,
        theta: NestedMap,
        rows: TextRows,
        states: list[Any],
        sampling: Sampling,
        eos_id: int,
        num_steps: int | tf.Tensor,
        on_stages: bool = True,
    ) -> tuple[TextRows, list[Any]]:
        """Continues texts by `num_steps` tokens, or until all are finished.

        Rows at place 0 first read their prompts, except the last token. Their states
        are ignored, so a row may begin a new text. A text depends on its prompt, its
        number and the settings, and on no other row. `states` are from `TextStates`, or
        from the call before.
        """


class Vocabulary(Protocol):
    """A map from tokens to texts."""

    @property
    def size(self) -> int:
        """Number of tokens. A model may predict more, which no text has."""

    @property
    def bos_id(self) -> int:
        """Token before a sequence's first one."""

    @property
    def eos_id(self) -> int:
        """Token that ends a sequence."""

    def Detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns each row's text up to the end token: int32 `[K, T]` -> `[K]`."""


@runtime_checkable
class DecodeInput(Protocol):
    """An input of sentences to translate."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the targets."""

    def DecodeBatches(self) -> tf.data.Dataset:
        """Returns batches that hold each sentence once, in the same order each time.

        Decoding is fastest if sentences are sorted by length. A batch is a NestedMap of
        tensors with static shapes. It has the task's inputs and

        - source_text, target_text: string `[B]`, the sentence and its translation
        - source_language, target_language: string `[B]`
        - place: int64 `[B]`, the sentence's position in the data
        - weight: float32 `[B]`, 1 for a sentence, and 0 for padding.
        """


@runtime_checkable
class SentenceInput(Protocol):
    """An input that also makes batches of sentences that are in no data set."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the targets."""

    def TargetLanguages(self) -> list[str]:
        """Returns the model's target languages, or an empty list if unknown."""

    def NumTokens(self, sentences: Sequence[str]) -> np.ndarray:
        """Returns the number of tokens of each sentence, int `[K]`.

        Raises:
            ValueError: if a sentence is too long.
        """

    def SentenceBatch(self, sentences: tf.Tensor, language: tf.Tensor) -> NestedMap:
        """Returns the batch with which `Decode` translates sentences, string `[B]`.

        The batch's `weight` is 0 for a sentence without words. `language`, string `[]`,
        is the target language.
        """


@runtime_checkable
class PromptInput(Protocol):
    """An input that also makes batches of texts to continue."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the texts."""

    def PromptBatch(self, texts: tf.Tensor) -> NestedMap:
        """Returns the tokens of texts that are to be continued, string `[B]`.

        Fields are `ids`, int32 `[B, T]`, which start with the begin token, and
        `lengths`, int32 `[B]`.
        """


@runtime_checkable
class ImageInput(Protocol):
    """An input that also prepares images that are in no data set."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape (H, W, C) of a prepared image."""

    @property
    def class_names(self) -> list[str]:
        """Names of the classes. Finding them may need the data.

        Raises:
            ValueError: if the data is needed and missing.
        """

    @property
    def pixel_note(self) -> str:
        """A sentence on the range of pixels and on the preparation of images."""

    def EvalImage(self, image: tf.Tensor) -> tf.Tensor:
        """Returns an image as evaluations read it: float32 `[H, W, C]`.

        `image` is a file's content, string `[]`, or pixels `[H', W', C]`. It may be a
        symbolic tensor.

        Raises:
            ValueError or tf.errors.InvalidArgumentError: if `image` is not an image.
        """


class EvalImages(Protocol):
    """Images drawn at the end of an evaluation from a few of its batches."""

    def Add(self, input_batch: NestedMap, predictions: Any) -> None:
        """Adds a batch and the last layer's outputs for it, `[B, ...]`."""

    def Draw(self) -> Mapping[str, bytes]:
        """Returns PNGs by name. The same batches give the same bytes."""


def translates(task: Any, data: Any) -> bool:
    """Returns whether a task with this input translates sentences."""
    return isinstance(task, DecodingTask) and isinstance(data, SentenceInput)


def generates(task: Any, data: Any) -> bool:
    """Returns whether a task with this input continues texts."""
    return isinstance(task, GeneratingTask) and isinstance(data, PromptInput)
