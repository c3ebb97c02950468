r"""From 102 languages to English: T(L, H, A) of GPipe (1811.06965, section 5).

L layers of encoder and of decoder each, H channels of the feed-forward parts, A heads
of 64 channels. What section 5 leaves open is as in 1907.05019.

Sentences are those of one's own, in `--data_dir`, here the German ones:

    multilingual.vocab         of 64,000 tokens, by lingvo_pipe_train_vocab
    de-en/train.de, train.en   to learn from
    de-en/test.de, test.en     to be tested with

To have other languages, derive a model and change LANGUAGES.

The stages are as many as published, cut where flops are as even as can be. To run on
another number of devices, have them cut anew:

    --devices=2 --model_params_override='task.pipeline.splits (str) : auto'
"""

from __future__ import annotations

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.cldr.languages import ENGLISH, LANGUAGES
from lingvo_pipe.input.text.text_file_pairs import ParallelFiles
from params.mt.big_transformer import BigTransformer


class MultilingualTransformer(BigTransformer):
    """A T(L, H, A) that learns from four million tokens a step."""

    LANGUAGES = tuple(LANGUAGES)
    VOCAB_FILE = "multilingual.vocab"
    VOCAB_SIZE = 64_000
    TEMPERATURE = 5.0

    BATCH_SIZE = 16_384  # Rows of 256 tokens, of which packing fills 98 %.
    NUM_MICRO_BATCHES = 512

    # The threshold is not published, nor whether logits are clipped softly.
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
    """473.4 million parameters, published as 400M."""


@model_registry.RegisterSingleTaskModel
class T_12_16384_32(MultilingualTransformer):
    """The wide model: 1.3 billion parameters, two stages."""

    NUM_LAYERS = 12
    HIDDEN_DIM = 16_384
    NUM_HEADS = 32
    NUM_STAGES = 2


@model_registry.RegisterSingleTaskModel
class T_24_8192_16(MultilingualTransformer):
    """The deep model: 1.3 billion parameters, four stages."""

    NUM_LAYERS = 24
    NUM_STAGES = 4


@model_registry.RegisterSingleTaskModel
class T_32_16384_32(MultilingualTransformer):
    """3.1 billion parameters, eight stages."""

    NUM_LAYERS = 32
    HIDDEN_DIM = 16_384
    NUM_HEADS = 32
    NUM_STAGES = 8


@model_registry.RegisterSingleTaskModel
class T_64_16384_32(MultilingualTransformer):
    """6.1 billion parameters in 128 layers, sixteen stages."""

    NUM_LAYERS = 64
    HIDDEN_DIM = 16_384
    NUM_HEADS = 32
    NUM_STAGES = 16
