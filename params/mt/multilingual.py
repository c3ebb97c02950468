r"""Translation from 102 languages: T(L, H, A) of GPipe (1811.06965, section 5).

The encoder and the decoder have L layers each, feed-forward layers have H channels, and
attention has A heads of 64 channels. Other values are from 1907.05019. Provide your own
sentences in `--data_dir`, and derive a model to change LANGUAGES. The files for German
are:

    multilingual.vocab         64,000 tokens, by lingvo_pipe vocab
    de-en/train.de, train.en   training sentences
    de-en/test.de, test.en     test sentences
"""

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.cldr.language import ENGLISH, LANGUAGES
from lingvo_pipe.input.text.text_file_pairs import ParallelFiles
from params.mt.translation_model import BigTransformer


class MultilingualTransformer(BigTransformer):
    """A Transformer T(L, H, A) that trains on four million tokens a step."""

    LANGUAGES = tuple(LANGUAGES)
    VOCAB_FILE = "multilingual.vocab"
    VOCAB_SIZE = 64_000
    TEMPERATURE = 5.0

    BATCH_SIZE = 16_384  # Rows of 256 tokens; packing fills 98 % of them.
    NUM_MICRO_BATCHES = 512

    # Neither the threshold nor the softness of the clipping is published.
    LOGITS_SOFT_MAX = 30.0

    def _Data(self, split: str) -> list[InstantiableParams]:
        return [
            ParallelFiles.Params().Set(
                source_language=language,
                target_language=ENGLISH,
                source_file=f"{language}-{ENGLISH}/{split}.{language}",
                target_file=f"{language}-{ENGLISH}/{split}.{ENGLISH}",
            )
            for language in self.LANGUAGES
        ]


@model_registry.RegisterSingleTaskModel
class T_6_8192_16(MultilingualTransformer):
    """The model with 473.4 million parameters, which is published as 400M."""


@model_registry.RegisterSingleTaskModel
class T_12_16384_32(MultilingualTransformer):
    """The wide model with 1.3 billion parameters, in two stages."""

    NUM_LAYERS = 12
    HIDDEN_DIM = 16_384
    NUM_HEADS = 32
    NUM_STAGES = 2


@model_registry.RegisterSingleTaskModel
class T_24_8192_16(MultilingualTransformer):
    """The deep model with 1.3 billion parameters, in four stages."""

    NUM_LAYERS = 24
    NUM_STAGES = 4


@model_registry.RegisterSingleTaskModel
class T_32_16384_32(MultilingualTransformer):
    """The model with 3.1 billion parameters, in eight stages."""

    NUM_LAYERS = 32
    HIDDEN_DIM = 16_384
    NUM_HEADS = 32
    NUM_STAGES = 8


@model_registry.RegisterSingleTaskModel
class T_64_16384_32(MultilingualTransformer):
    """The model with 6.1 billion parameters in 128 layers, in sixteen stages."""

    NUM_LAYERS = 64
    HIDDEN_DIM = 16_384
    NUM_HEADS = 32
    NUM_STAGES = 16
