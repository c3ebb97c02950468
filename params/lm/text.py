r"""A small language model of any text, by default of English sentences from CLDR.

For your own text train a vocabulary, and derive a model in `my_models/novel.py`:

    lingvo_pipe vocab --output=/data/novel.vocab \
        --vocab_size=4000 /data/novel.train.txt

    @model_registry.RegisterSingleTaskModel
    class Novel(TransformerTiny):
        TRAIN_FILES = ["/data/novel.train.txt"]
        TEST_FILES = ["/data/novel.test.txt"]
        VOCAB_FILE = "/data/novel.vocab"
        VOCAB_SIZE = 4000
"""

import model_registry
from lingvo_pipe.input.cldr import shipped
from params.lm.language_model import LanguageModel


@model_registry.RegisterSingleTaskModel
class TransformerTiny(LanguageModel):
    """A small language model of four layers in two stages."""

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
    LEARNING_RATE = 3e-3
    WARMUP_STEPS = 50
    MAX_STEPS = 600


@model_registry.RegisterSingleTaskModel
class TransformerTinyLocal(TransformerTiny):
    """TransformerTiny in two blocks, each with a local loss and a device of its own."""

    TIED_EMBEDDINGS = False  # Blocks share no weights.
    NUM_BLOCKS = 2
