"""Language modeling: B examples of T tokens, V tokens in the vocabulary."""

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.models.transformer.incremental import placed_cells
from lingvo_pipe.models.transformer.local_heads import logits_head
from lingvo_pipe.models.transformer.logits import token_metrics
from lingvo_pipe.models.transformer.sample_decode import (
    States,
    extend_groups,
    init_groups,
)
from lingvo_pipe.models.transformer.streams import TARGET, as_stream, has_hidden
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.base_task import BaseTask
from lingvo_pipe.training.task.protocols import Sampling, TextRows


class LanguageModelTask(BaseTask):
    """A task that trains a pipeline to predict the next tokens of a text.

    Fields of a batch are `[B, T]`: `ids`, `segment_ids` and `segment_pos` (see
    `streams`), `labels` and `weights`. The `ids` are the inputs, one token behind the
    `labels`. The `weights` are 0 for padding.
    """

    @classmethod
    def LocalHead(
        cls, p: InstantiableParams, num_cells: int, passed_on: Any, predictions: Any
    ) -> InstantiableParams:
        """Returns params of a head: a norm, and a projection to the vocabulary."""
        if not has_hidden(passed_on, TARGET):
            return super().LocalHead(p, num_cells, passed_on, predictions)
        return logits_head(p.pipeline.cell_tpl, passed_on, predictions)

    def PipelineInputs(self, input_batch: NestedMap) -> list[NestedMap]:
        """Returns the pipeline's only input: the stream `target`, not yet embedded."""
        return [NestedMap(target=as_stream(input_batch, "labels"))]

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        return NestedMap(labels=input_batch.labels, weights=input_batch.weights)

    def ServingOutputs(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the `logits` of each next token, `[B, T, V]`."""
        return {"logits": predictions}

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        """Returns `loss`, `log_pplx` (the same) and `accuracy`, as means per token."""
        return token_metrics(predictions, targets.labels, targets.weights)

    def TextStates(
        self,
        theta: NestedMap,
        num_rows: int | tf.Tensor,
        num_tokens: int | tf.Tensor,
        num_groups: int | None = None,
        on_stages: bool = True,
    ) -> list[States]:
        """Returns the layers' states for each group of rows. See `init_groups`."""
        cells = placed_cells(self.pipeline, theta.pipeline, on_stages)
        return init_groups(cells, num_rows, num_tokens, num_groups)

    def ContinueTexts(
        self,
        theta: NestedMap,
        rows: TextRows,
        states: list[States],
        sampling: Sampling,
        eos_id: int,
        num_steps: int | tf.Tensor,
        on_stages: bool = True,
    ) -> tuple[TextRows, list[States]]:
        """Continues texts by drawn tokens. See `GeneratingTask` and `sample_decode`."""
        cells = placed_cells(self.pipeline, theta.pipeline, on_stages)
        return extend_groups(cells, rows, states, sampling, eos_id, num_steps)
