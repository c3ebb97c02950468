"""Translation of K sentences that are in no data set, B in a batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.training.decode import decoder
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import PromptInput, SentenceInput


def check_text_input(input_generator: Any) -> SentenceInput | PromptInput:
    """Returns the input if it makes batches of sentences, or of texts to continue.

    Raises:
        ValueError: if the input is neither a SentenceInput nor a PromptInput.
    """
    if not isinstance(input_generator, (SentenceInput, PromptInput)):
        raise UserValueError(
            path="input",
            expected="SentenceBatch, NumTokens, TargetLanguages and a vocabulary, as a "
            "TranslationInput has, or PromptBatch, as a LanguageModelInput has",
            got=Words(type(input_generator).__name__),
        )
    return input_generator


class Translator:
    """A translator of single sentences, with the weights of a DecodingTask.

    Raises:
        ValueError: if the task is not a DecodingTask.
    """

    def __init__(self, task: BaseTask, data: SentenceInput, batch_size: int) -> None:
        self._data, self._batch_size = data, batch_size
        self._function = translate_function(decoder.decode_method(task), data)

    def __call__(self, sentences: Sequence[str], language: str | None) -> list[str]:
        """Returns the best translation of each sentence, "" for one without words.

        `language` is the target language. It may be None if the model has only one.

        Raises:
            TypeError: if `sentences` are not texts.
            ValueError: if the language is unknown, or a sentence is too long.
            FloatingPointError: if a score is not finite.
        """
        sentences = decoder.listed_texts(sentences, "sentences")
        language = self._checked_language(language)
        texts = [""] * len(sentences)
        if not texts:
            return texts
        num_tokens = self._data.NumTokens(sentences)
        # A batch takes as long as its longest sentence, so similar lengths share one.
        order = np.argsort(-num_tokens, kind="stable")[: np.count_nonzero(num_tokens)]
        starts = range(0, len(order), self._batch_size)
        for start in tqdm.tqdm(starts, unit=" batches", disable=None, leave=False):
            rows = order[start : start + self._batch_size]
            batch = [sentences[row] for row in rows]
            outputs = self._function(tf.constant(batch), tf.constant(language))
            scores = outputs["scores"].numpy()
            for row, text, score in zip(
                rows, outputs["translations"].numpy(), scores, strict=True
            ):
                decoder.check_finite(sentences[row], score)
                texts[row] = text.decode()
        return texts

    def _checked_language(self, language: str | None) -> str:
        languages = self._data.TargetLanguages()
        if language is None and len(languages) < 2:
            return languages[0] if languages else ""
        if language is None or language not in languages:
            raise UserValueError(
                path="target_language",
                expected=", ".join(languages) or "None, as there is one direction",
                got=language,
                names=languages,
            )
        return language


def translate_function(decode: decoder.Decode, data: SentenceInput) -> Any:
    """Returns a tf.function of `sentences`, string `[B]`, and `target_language`, `[]`.

    The function returns `translations`, string `[B]`, and `scores`, `[B]`. For a
    sentence without words, the translation is "", and the score has no meaning.
    """

    def translate(
        sentences: tf.Tensor, target_language: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            batch = data.SentenceBatch(sentences, target_language)
        num_rows = tf.size(sentences)
        texts, scores, _ = decoder.decoded_texts(
            decode, batch, num_rows, data.vocabulary
        )
        translations = tf.where(batch.weight > 0, texts[:, 0], "")
        return {"translations": translations, "scores": scores[:, 0]}

    specs = [
        tf.TensorSpec([None], tf.string, "sentences"),
        tf.TensorSpec([], tf.string, "target_language"),
    ]
    return tf.function(translate, specs, autograph=False)
