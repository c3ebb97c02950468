"""A task that spells, its input, and translations.

Shapes: B sentences in a batch, N sequences for each, T tokens at most.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import current_context
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.decode.decoder import Hypothesis, Translation
from lingvo_pipe.training.task.base_task import BaseTask

BOS, EOS, NUM_LETTERS = 2, 3, 26
_FIRST_LETTER = 4


class Letters:
    """A vocabulary of letters."""

    bos_id, eos_id = BOS, EOS
    size = _FIRST_LETTER + NUM_LETTERS

    def Detokenize(self, ids: tf.Tensor) -> tf.Tensor:
        letters = tf.constant([""] * _FIRST_LETTER + [chr(97 + i) for i in range(26)])
        return tf.strings.reduce_join(tf.gather(letters, ids), 1)


class Spelled(NamedTuple):
    ids: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor


class SpellingTask(BaseTask):
    """A task that translates a word to itself and to its first letter."""

    def Decode(
        self, theta: Any, input_batch: NestedMap, first_ids: tf.Tensor, eos_id: int
    ) -> Spelled:
        assert current_context().vocabulary_size == Letters.size
        codes = tf.io.decode_raw(input_batch.source_text, tf.uint8, fixed_length=4)
        codes = tf.cast(codes, tf.int32)
        ids = tf.where(codes > 0, codes - 97 + _FIRST_LETTER, eos_id)
        first = tf.concat([ids[:, :1], tf.fill([ids.shape[0], 3], eos_id)], 1)
        weight = theta.pipeline.cells[0].w[0, 0]
        is_right = tf.reduce_all(tf.equal(first_ids, BOS))
        scores = tf.where(is_right, weight, 0.0) * tf.constant([1.0, 2.0])
        return Spelled(
            ids=tf.stack([ids, first], 1),
            lengths=tf.tile([[5, 2]], [ids.shape[0], 1]),
            scores=tf.tile(scores[tf.newaxis], [ids.shape[0], 1]),
        )


def spelling_task(weight: float = -0.5) -> SpellingTask:
    p = SpellingTask.Params().Set(name="task")
    p.pipeline.cell_tpl = [FCLayer.Params().Set(input_dim=1, output_dim=1)]
    task = p.Instantiate()
    task.pipeline.cells[0].vars.w.assign([[weight]])
    return task


class WordsInput:
    """Words in two languages, two in a batch, with a padding row at the end."""

    vocabulary = Letters()

    def __init__(self, *words: str):
        self._words = words

    def DecodeBatches(self) -> tf.data.Dataset:
        num_rows = len(self._words)
        rows = NestedMap(
            source_text=list(self._words),
            target_text=[word.upper() for word in self._words],
            source_language=["de", "zh_Hant"] * (num_rows // 2)
            + ["de"] * (num_rows % 2),
            target_language=["en"] * num_rows,
            place=np.arange(num_rows),
            weight=np.ones(num_rows, np.float32),
        )
        data = tf.data.Dataset.from_tensor_slices(rows)
        padding = NestedMap(
            dict.fromkeys(rows, ""), place=np.int64(0), weight=np.float32(0)
        )
        padded = data.concatenate(tf.data.Dataset.from_tensors(padding))
        if num_rows % 2:
            data = padded
        return data.batch(2, drop_remainder=True)


def translation(
    hypothesis: str, reference: str, source: str = "de", target: str = "en"
) -> Translation:
    return Translation(
        source="quelle",
        reference=reference,
        hypotheses=(Hypothesis(hypothesis, -0.25),),
        source_language=source,
        target_language=target,
        position=0,
    )
