"""Base class of registered Transformers, and their learning rate schedules."""

from typing import Any

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.models.transformer.network import tied_embeddings
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from params.staged_model import StagedModel, warm_up


class TransformerModel(StagedModel):
    """A Transformer on rows of tokens, configured by constants."""

    STREAMS: tuple[str, ...]  # Names of the streams of tokens in a batch.

    VOCAB_FILE: str
    VOCAB_SIZE: int
    LENGTH: int  # Tokens in a row of each stream.
    BATCH_SIZE: int  # Rows.

    NUM_LAYERS: int  # In the encoder, if there is one, and in the decoder.
    HIDDEN_DIM: int
    NUM_HEADS: int
    MODEL_DIM: int
    DROPOUT = 0.1
    TIED_EMBEDDINGS = False

    LEARNING_RATE: float
    WARMUP_STEPS: int
    MAX_STEPS: int

    def Task(self) -> InstantiableParams:
        p = super().Task()
        if self.TIED_EMBEDDINGS:
            p.pipeline.tied = tied_embeddings(p.pipeline.cell_tpl)
        return p

    def _MaxSteps(self) -> int:
        return self.MAX_STEPS

    def _Splits(self, cells: list[InstantiableParams]) -> int | list[int]:
        numbers = tf.TensorSpec([1, self.LENGTH], tf.int32)
        stream = dict.fromkeys(("ids", "segment_ids", "segment_pos"), numbers)
        state = NestedMap({name: NestedMap(stream) for name in self.STREAMS})
        return self._EvenStages(cells, state)

    def _SetLearner(self, train: Params) -> None:
        train.Set(
            learning_rate=self.LEARNING_RATE,
            lr_schedule=cosine_decay(self.WARMUP_STEPS, self.MAX_STEPS),
            optimizer=OptimizerParams("Adam", beta_2=0.98),
        )

    def _Network(self, make: Any, **arguments: Any) -> list[InstantiableParams]:
        """Returns the layers that `make` builds from this model's sizes."""
        return make(
            num_layers=self.NUM_LAYERS,
            hidden_dim=self.HIDDEN_DIM,
            num_heads=self.NUM_HEADS,
            num_tokens=self.VOCAB_SIZE,
            model_dim=self.MODEL_DIM,
            dropout_prob=self.DROPOUT,
            **arguments,
        )


def inverse_square_root(warmup_steps: int) -> Params:
    """Returns params of a linear warm-up to a rate proportional to 1/√step."""
    schedule = ScheduleParams("InverseSquareRoot", constant_steps=warmup_steps)
    return warm_up(warmup_steps, schedule)


def cosine_decay(warmup_steps: int, decay_steps: int) -> Params:
    """Returns params of a linear warm-up and a cosine decay to 2 % of the rate."""
    schedule = ScheduleParams("CosineDecay", decay_steps=decay_steps, alpha=0.02)
    return warm_up(warmup_steps, schedule)
