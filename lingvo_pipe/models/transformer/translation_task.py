"""Translation: B examples, S source and T target tokens, V in the vocabulary."""

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.softmax_cross_entropy import check_label_smoothing
from lingvo_pipe.models.decoding.beam_search import Hypotheses
from lingvo_pipe.models.transformer import local_heads
from lingvo_pipe.models.transformer.beam_decode import beam_decode, decoding_params
from lingvo_pipe.models.transformer.incremental import placed_cells
from lingvo_pipe.models.transformer.logits import token_metrics
from lingvo_pipe.models.transformer.streams import SOURCE, as_stream, has_hidden
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.base_task import BaseTask


class TranslationTask(BaseTask):
    """A task that trains a pipeline to predict the target's next tokens.

    Batches have `source` `[B, S]` and `target` `[B, T]`, each with `ids`, `segment_ids`
    and `segment_pos` (see `streams`). The target also has `labels` and `weights`. Its
    `ids` are the decoder's inputs, one token behind the `labels`. The `weights` are 0
    for padding.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        smoothing = "Fraction of the target spread over the vocabulary."
        p.Define("label_smoothing", 0.1, smoothing)
        p.Define("decode", decoding_params(), "Params of decoding.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        check_label_smoothing(self.params.label_smoothing)

    @classmethod
    def LocalHead(
        cls, p: InstantiableParams, num_cells: int, passed_on: Any, predictions: Any
    ) -> InstantiableParams:
        """Returns params of a head: logits or, in the encoder, a decoder and logits."""
        cells = p.pipeline.cell_tpl
        if any(local_heads.reads_source(cell) for cell in cells[:num_cells]):
            return local_heads.logits_head(cells, passed_on, predictions)
        if has_hidden(passed_on, SOURCE) and any(map(local_heads.reads_source, cells)):
            return local_heads.decoder_head(cells, passed_on, predictions)
        return super().LocalHead(p, num_cells, passed_on, predictions)

    def PipelineInputs(self, input_batch: NestedMap) -> list[NestedMap]:
        """Returns the pipeline's input: a state of both streams, not yet embedded."""
        source, target = as_stream(input_batch.source), input_batch.target
        return [NestedMap(source=source, target=as_stream(target, "labels"))]

    def LossTargets(self, input_batch: NestedMap) -> NestedMap:
        target = input_batch.target
        return NestedMap(labels=target.labels, weights=target.weights)

    def ServingOutputs(self, predictions: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the `logits` of each next token, `[B, T, V]`."""
        return {"logits": predictions}

    def ComputeLoss(self, predictions: tf.Tensor, targets: NestedMap) -> NestedMap:
        """Returns `loss`, `log_pplx` and `accuracy`. Training smooths the labels."""
        smoothing = 0.0 if self.do_eval else self.params.label_smoothing
        return token_metrics(predictions, targets.labels, targets.weights, smoothing)

    def Decode(
        self,
        theta: NestedMap,
        input_batch: NestedMap,
        first_ids: tf.Tensor,
        eos_id: int,
        on_stages: bool = True,
    ) -> Hypotheses:
        """Translates `source` `[B, S]`. See `beam_decode` and `placed_cells`."""
        cells = placed_cells(self.pipeline, theta.pipeline, on_stages)
        source = as_stream(input_batch.source)
        return beam_decode(self.params.decode, cells, source, first_ids, eos_id)
