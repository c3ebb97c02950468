"""Texts that language models continue, as lists of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.decode.continuous_batch import ContinuousBatch
from lingvo_pipe.training.decode.generator import DTYPES
from lingvo_pipe.training.task.protocols import Sampling
from tests.models.transformer.small_models import NUM_TOKENS

EOS = 2
_SPECS = Sampling(*(tf.TensorSpec([], dtype) for dtype in DTYPES.values()))

Text = list[int]


def continuous_batch(
    task: Any, batch_size: int, num_groups: int | None = None, size: int = NUM_TOKENS
) -> ContinuousBatch:
    vocabulary: Any = SimpleNamespace(eos_id=EOS, size=size)
    return ContinuousBatch(task, batch_size, vocabulary, _SPECS, num_groups)


def prompt_batch(texts: Sequence[Text]) -> NestedMap:
    """Returns what an input's `PromptBatch` does."""
    ragged = tf.ragged.constant(texts, tf.int32)
    lengths = tf.cast(ragged.row_lengths(), tf.int32)
    return NestedMap(ids=ragged.to_tensor(), lengths=lengths)


def tensors(sampling: Sampling) -> Sampling:
    return Sampling(*map(tf.constant, sampling, DTYPES.values()))


def continued(
    batch: ContinuousBatch, prompts: Sequence[Text], sampling: Sampling
) -> list[Text]:
    """Returns the texts, each with its end token if that was drawn."""
    rows = batch(prompt_batch(prompts), tensors(sampling)).tolist()
    pairs = zip(rows, map(len, prompts), strict=True)
    return [up_to_end(row, start, sampling) for row, start in pairs]


def up_to_end(row: Text, start: int, sampling: Sampling) -> Text:
    """Returns a row's text, whose prompt has `start` tokens. Checks what follows it."""
    new = row[start : start + sampling.max_tokens]
    length = start + (new.index(EOS) + 1 if EOS in new else len(new))
    assert set(row[length:]) <= {EOS}
    return row[:length]
