r"""Small models that translate to English, on data that come with the library.

`lingvo_pipe/input/cldr/sentences.py` describes the sentences, which are from CLDR.

    trainer --model=mt.cldr.TransformerTiny --logdir=/tmp/tiny
    trainer --model=mt.cldr.TransformerTiny --logdir=/tmp/tiny --job=decoder
"""

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.cldr import shipped
from lingvo_pipe.input.text.tfds_pairs import TfdsPairs
from params.mt.translation_model import TranslationModel


class CldrTransformer(TranslationModel):
    """A Transformer with one embedding table for source, target and softmax."""

    DATASET: str

    LENGTH = 128
    TIED_EMBEDDINGS = True

    NUM_STAGES = 2
    NUM_MICRO_BATCHES = 4
    RECOMPUTE = "never"  # Recomputation would take a quarter of the time.

    def Task(self) -> InstantiableParams:
        p = super().Task()
        p.decode.max_extra_length = 20  # A name may be longer in English.
        return p

    def _Data(self, split: str) -> list[InstantiableParams]:
        return [TfdsPairs.Params().Set(dataset=self.DATASET, split=split)]


@model_registry.RegisterSingleTaskModel
class TransformerTiny(CldrTransformer):
    """A model that translates from eight languages. This is the model to start with."""

    DATASET = "cldr_sentences/8_to_en"
    VOCAB_FILE = shipped.shipped_file(shipped.EIGHT_VOCABULARY)
    VOCAB_SIZE = shipped.VOCABULARY_SIZES[shipped.EIGHT_VOCABULARY]
    BATCH_SIZE = 32

    NUM_LAYERS = 2
    HIDDEN_DIM = 512
    NUM_HEADS = 2
    MODEL_DIM = 128

    LEARNING_RATE = 3e-3
    WARMUP_STEPS = 100
    MAX_STEPS = 1000


@model_registry.RegisterSingleTaskModel
class TransformerTinyLocal(TransformerTiny):
    """TransformerTiny in two blocks, encoder and decoder, each with a local loss."""

    TIED_EMBEDDINGS = False  # Blocks share no weights.
    NUM_BLOCKS = 2


@model_registry.RegisterSingleTaskModel
class TransformerTiny102(TransformerTiny):
    """The model TransformerTiny for all 102 languages."""

    DATASET = "cldr_sentences/all_to_en"
    VOCAB_FILE = shipped.shipped_file(shipped.ALL_VOCABULARY)
    VOCAB_SIZE = shipped.VOCABULARY_SIZES[shipped.ALL_VOCABULARY]


@model_registry.RegisterSingleTaskModel
class TransformerSmall(TransformerTiny):
    """A model twice as wide and twice as deep as TransformerTiny, for a GPU."""

    BATCH_SIZE = 64

    NUM_LAYERS = 4
    HIDDEN_DIM = 1024
    NUM_HEADS = 4
    MODEL_DIM = 256

    LEARNING_RATE = 1e-3
    WARMUP_STEPS = 400
    MAX_STEPS = 5000
