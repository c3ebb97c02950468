r"""A small language model of any text, by default of English sentences from CLDR.

For your own text train a vocabulary, and derive a model in `my_models/novel.py`:

    lingvo_pipe_train_vocab --output=/data/novel.vocab \
        --vocab_size=4000 /data/novel.train.txt

    @model_registry.RegisterSingleTaskModel
    class Novel(TransformerTiny):
        TRAIN_FILES = ["/data/novel.train.txt"]
        TEST_FILES = ["/data/novel.test.txt"]
        VOCAB_FILE = "/data/novel.vocab"
        VOCAB_SIZE = 4000
"""

import model_registry
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.input.cldr import shipped
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from params.lm.language_model import LanguageModel
from params.transformer_model import cosine_decay


@model_registry.RegisterSingleTaskModel
class TransformerTiny(LanguageModel):
    """Four layers in two stages."""

    TRAIN_FILES = (shipped.shipped_file(shipped.TEXTS["train"]),)
    TEST_FILES = (shipped.shipped_file(shipped.TEXTS["test"]),)
    VOCAB_FILE = shipped.shipped_file(shipped.ENGLISH_VOCABULARY)
    VOCAB_SIZE = shipped.VOCABULARY_SIZES[shipped.ENGLISH_VOCABULARY]
    LENGTH = 128
    BATCH_SIZE = 32

    NUM_LAYERS = 4
    HIDDEN_DIM = 512
    NUM_HEADS = 2
    MODEL_DIM = 128
    TIED_EMBEDDINGS = True

    NUM_STAGES = 2
    NUM_MICRO_BATCHES = 4
    RECOMPUTE = "never"
    MAX_STEPS = 600

    def _SetLearner(self, train: Params) -> None:
        train.Set(
            learning_rate=3e-3,
            lr_schedule=cosine_decay(50, self.MAX_STEPS),
            optimizer=OptimizerParams("Adam", beta_2=0.98),
        )


@model_registry.RegisterSingleTaskModel
class TransformerTinyLocal(TransformerTiny):
    """Two blocks of layers, each trained by a local loss on its own device."""

    TIED_EMBEDDINGS = False  # Blocks share no weights.
    NUM_BLOCKS = 2
