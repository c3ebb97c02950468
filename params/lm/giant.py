r"""Transformer-L of GPipe's table 1 (1811.06965): as many layers as fit in memory.

`L1663` has 1,663 layers and 83.9 billion parameters, on 128 accelerators of 16 GB.
Provide your own text in `--data_dir`, with blank lines between documents:

    giant.vocab            32,000 tokens, by lingvo_pipe vocab
    train.txt, test.txt    training text, test text
"""

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.input.text.text_files import BLANK_LINES
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from params.lm.language_model import LanguageModel
from params.transformer_model import inverse_square_root


class GiantTransformer(LanguageModel):
    """A language model trained on 32 rows of 1,024 tokens a step, each a micro-batch.

    The optimizer is published: RMSProp, with 12 bytes for each parameter. The learning
    rate is not published.
    """

    TRAIN_FILES = ("train.txt",)
    TEST_FILES = ("test.txt",)
    DOCUMENTS = BLANK_LINES
    VOCAB_FILE = "giant.vocab"
    VOCAB_SIZE = 32_000
    LENGTH = 1024
    BATCH_SIZE = 32
    NUM_MICRO_BATCHES = 32

    HIDDEN_DIM = 8192
    NUM_HEADS = 32
    MODEL_DIM = 2048

    MAX_STEPS = 500_000

    def _SetLearner(self, train: Params) -> None:
        train.Set(
            learning_rate=1e-4,
            lr_schedule=inverse_square_root(10_000),
            optimizer=OptimizerParams("RMSpropFromOnes", momentum=0.9),
            clip_gradient_norm_to_value=1.0,
        )


@model_registry.RegisterSingleTaskModel
class L3(GiantTransformer):
    """The model with 282.2 million parameters, the largest without a pipeline."""

    NUM_LAYERS = 3
    NUM_MICRO_BATCHES = 1


@model_registry.RegisterSingleTaskModel
class L13(GiantTransformer):
    """The model with 785.8 million parameters, in one stage."""

    NUM_LAYERS = 13


@model_registry.RegisterSingleTaskModel
class L103(GiantTransformer):
    """The model with 5.3 billion parameters, in eight stages."""

    NUM_LAYERS = 103
    NUM_STAGES = 8


@model_registry.RegisterSingleTaskModel
class L415(GiantTransformer):
    """The model with 21.0 billion parameters, in 32 stages."""

    NUM_LAYERS = 415
    NUM_STAGES = 32


@model_registry.RegisterSingleTaskModel
class L1663(GiantTransformer):
    """The model with 83.9 billion parameters, in 128 stages."""

    NUM_LAYERS = 1663
    NUM_STAGES = 128
