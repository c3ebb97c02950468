"""Small Transformers, and batches of sentences for them, packed or not.

Shapes: B examples, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.models.transformer.language_model_task import LanguageModelTask
from lingvo_pipe.models.transformer.logits import LogitsLayer
from lingvo_pipe.models.transformer.network import (
    language_model,
    tied_embeddings,
    translation_model,
)
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.models.transformer.translation_task import TranslationTask
from lingvo_pipe.nested_map import NestedMap

NUM_TOKENS = 11
MODEL_DIM = 6
_START, _FIRST_WORD = 1, 2

Sentence = list[int]


def small_layer(**params: Any) -> InstantiableParams:
    """Returns a layer of two heads of three channels, with biases and norm weights."""
    p = TransformerLayer.Params().Set(**params)
    p.attention_tpl.dim_per_head = 3
    return p


def small_sizes(dropout_prob: float = 0.0, **params: Any) -> dict[str, Any]:
    """Returns arguments of both kinds of models."""
    return {
        "num_layers": 2,
        "hidden_dim": 8,
        "num_heads": 2,
        "num_tokens": NUM_TOKENS,
        "model_dim": MODEL_DIM,
        "dropout_prob": dropout_prob,
        "layer_tpl": small_layer(),
        "logits_tpl": LogitsLayer.Params().Set(logits_soft_max=5.0, has_bias=True),
        **params,
    }


def translation_task(tied: bool = False, **sizes: Any) -> InstantiableParams:
    """Returns an encoder and a decoder of two layers each."""
    p = TranslationTask.Params().Set(name="task")
    p.pipeline.cell_tpl = translation_model(**small_sizes(**sizes))
    p.pipeline.tied = tied_embeddings(p.pipeline.cell_tpl) if tied else {}
    return p


def language_model_task(**sizes: Any) -> InstantiableParams:
    """Returns a language model of two layers."""
    p = LanguageModelTask.Params().Set(name="task")
    p.pipeline.cell_tpl = language_model(**small_sizes(**sizes))
    return p


def sentences(lengths: Sequence[int], seed: int = 0) -> list[Sentence]:
    """Returns random sentences of these lengths."""
    draw = np.random.default_rng(seed)
    return [list(map(int, draw.integers(_FIRST_WORD, NUM_TOKENS, n))) for n in lengths]


def packed(rows: Sequence[Sequence[Sentence]], num_tokens: int) -> NestedMap:
    """Returns the stream whose rows hold these sentences, `[B, T]` each."""
    shape = [len(rows), num_tokens]
    stream = NestedMap(
        ids=np.zeros(shape, np.int32),
        segment_ids=np.zeros(shape, np.int32),
        segment_pos=np.zeros(shape, np.int32),
    )
    for row, packed_row in enumerate(rows):
        start = 0
        for segment, sentence in enumerate(packed_row, 1):
            end = start + len(sentence)
            stream.ids[row, start:end] = sentence
            stream.segment_ids[row, start:end] = segment
            stream.segment_pos[row, start:end] = np.arange(len(sentence))
            start = end
    return stream


def predicted(rows: Sequence[Sequence[Sentence]], num_tokens: int) -> NestedMap:
    """Returns `packed` with labels: sentences one token later."""
    read = [[[_START, *sentence[:-1]] for sentence in row] for row in rows]
    stream, labels = packed(read, num_tokens), packed(rows, num_tokens)
    stream.labels = labels.ids
    stream.weights = (labels.segment_ids > 0).astype(np.float32)
    return stream


def translation_batch(
    sources: Sequence[Sequence[Sentence]],
    targets: Sequence[Sequence[Sentence]],
    num_source_tokens: int = 8,
    num_target_tokens: int = 9,
) -> NestedMap:
    """Returns a batch of pairs, some packed into a row."""
    batch = NestedMap(
        source=packed(sources, num_source_tokens),
        target=predicted(targets, num_target_tokens),
    )
    return batch.Transform(tf.constant)


def alone(found: Sequence[Sentence]) -> list[list[Sentence]]:
    """Returns a batch with a row for each sentence."""
    return [[sentence] for sentence in found]


def metrics_and_gradients(
    task: Any, batch: NestedMap
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Returns means by name, gradients by path, layer by layer without the pipeline."""
    with tf.GradientTape() as tape, ForwardContext(step=3, first_example=0):
        (outputs,) = task.PipelineInputs(batch)
        for cell in task.pipeline.cells:
            outputs = cell(outputs)
        metrics = task.ComputeLoss(outputs, task.LossTargets(batch))
    variables = task.VariablePaths()
    gradients = tape.gradient(metrics.loss[0], variables)
    return (
        {name: float(mean) for name, (mean, _) in metrics.items()},
        {k: tf.convert_to_tensor(x).numpy() for k, x in gradients.items()},
    )


def pipelined_metrics_and_gradients(
    task: Any, batch: NestedMap
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Returns the same from the pipeline."""
    with ForwardContext(step=tf.constant(3, tf.int64), first_example=0):
        result = task.ComputeGradients(task.Values(), batch)
    metrics = {name: float(mean) for name, (mean, _) in result.metrics.items()}
    paths = {v.ref(): path for path, v in task.VariablePaths().items()}
    trees = tf.nest.flatten(task.vars), tf.nest.flatten(result.gradients)
    pairs = zip(*trees, strict=True)
    return metrics, {paths[v.ref()]: g.numpy() for v, g in pairs if g is not None}


def assert_alike(a: Any, b: Any, tolerance: float) -> None:
    """Asserts that maps of numbers agree, relative to the largest in each."""
    assert a.keys() == b.keys()
    for name in a:
        largest = np.max(np.abs(a[name]), initial=1e-3)
        np.testing.assert_allclose(
            a[name], b[name], rtol=0, atol=tolerance * largest, err_msg=name
        )
