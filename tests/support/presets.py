"""Presets of KerasHub with random weights and tokenizers of a few sentences."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

SENTENCES = [
    "the quick brown fox jumped over it",
    "a lazy dog slept",
    "it was a quick nap",
    "the dog and the fox met at noon",
] * 4
LENGTH = 8


def write_preset(folder: Path, family: str = "GPT2", **sizes: Any) -> str:
    """Writes a preset of a language model, and returns its name for `from_preset`."""
    import keras_hub  # It needs Python 3.11.

    preprocessor, sizes = {"GPT2": _gpt2, "Gemma": _gemma}[family](keras_hub, sizes)
    models = keras_hub.models
    backbone = getattr(models, f"{family}Backbone")(**sizes)
    getattr(models, f"{family}CausalLM")(backbone, preprocessor).save_to_preset(folder)
    return str(folder)


def _gpt2(hub: Any, sizes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    letters = sorted({"Ġ" if x == " " else x for x in "".join(SENTENCES)})
    # As in GPT-2, token 0 pads, and is no stop token.
    pieces = ["!", "<|endoftext|>", *letters, "th", "the", "Ġthe"]
    tokenizer = hub.models.GPT2Tokenizer(
        {piece: i for i, piece in enumerate(pieces)}, ["t h", "th e", "Ġ the"]
    )
    return hub.models.GPT2CausalLMPreprocessor(tokenizer, LENGTH), {
        "vocabulary_size": len(pieces),
        "num_layers": 2,
        "num_heads": 2,
        "hidden_dim": 256,
        "intermediate_dim": 1024,
        "max_sequence_length": LENGTH,
        **sizes,
    }


def _gemma(hub: Any, sizes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=36,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
    )
    tokenizer = hub.models.GemmaTokenizer(model.getvalue())
    return hub.models.GemmaCausalLMPreprocessor(tokenizer, LENGTH), {
        "vocabulary_size": tokenizer.vocabulary_size(),
        "num_layers": 2,
        "num_query_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "hidden_dim": 512,
        "intermediate_dim": 1024,
        **sizes,
    }
