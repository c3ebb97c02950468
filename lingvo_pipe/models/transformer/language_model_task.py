"""Language modelling: each token from those before it.

Shapes: B examples, T tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.models.transformer.streams import as_stream
from lingvo_pipe.models.transformer.token_loss import token_metrics
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.base_task import BaseTask


class LanguageModelTask(BaseTask):
    """Trains a pipeline from a text to its next tokens.

    Batches have `ids`, `segment_ids` and `segment_pos` as of `streams`, `[B, T]`. The
    `ids` are what is read, one token behind the `labels` `[B, T]`; `weights` `[B, T]`
    are 0 for padding.
    """

    def PipelineInputs(self, input_batch: NestedMap) -> list[NestedMap]:
        """The state of the one stream, without hidden states."""
        return [NestedMap(target=as_stream(input_batch))]

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        """Labels and weights."""
        return NestedMap(labels=input_batch.labels, weights=input_batch.weights)

    def ServingOutputs(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """`logits` of each next token, `[B, T, V]`."""
        return {"logits": predictions}

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        """`loss`, `log_pplx`, which is the same, and `accuracy`, by token."""
        return token_metrics(predictions, targets.labels, targets.weights)
