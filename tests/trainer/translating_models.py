"""A user's model that translates letters: to the same ones, or to those behind them."""

from __future__ import annotations

import itertools
from pathlib import Path

import model_registry
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.text.text_file_pairs import TsvFile
from lingvo_pipe.input.text.translation_input import TranslationInput
from lingvo_pipe.input.text.vocabulary import train_vocabulary
from lingvo_pipe.models.transformer.network import tied_embeddings, translation_model
from lingvo_pipe.models.transformer.transformer_layer import TransformerLayer
from lingvo_pipe.models.transformer.translation_task import TranslationTask
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams, ScheduleParams
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams

LETTERS = "abcdef"
LANGUAGES = {"same": 0, "next": 1}  # how far letters are shifted
# Those of every vocabulary, a token a language, a letter, and the space.
_NUM_TOKENS = 4 + len(LANGUAGES) + len(LETTERS) + 1


def translated(sentence: str, language: str) -> str:
    """`a b f` -> `b c a` for the next ones."""
    shift = LANGUAGES[language]
    ring = LETTERS[shift:] + LETTERS[:shift]
    return " ".join(ring[LETTERS.index(letter)] for letter in sentence.split())


def write_data(folder: Path) -> None:
    """Sentences of up to three letters, a seventh of them for the test."""
    sentences = [
        " ".join(letters)
        for length in (1, 2, 3)
        for letters in itertools.product(LETTERS, repeat=length)
    ]
    for language in LANGUAGES:
        lines = [f"{each}\t{translated(each, language)}\n" for each in sentences]
        test = lines[3::7]
        train = [line for line in lines if line not in test]
        (folder / f"train.{language}").write_text("".join(train))
        (folder / f"test.{language}").write_text("".join(test))
    (folder / "letters.model").write_bytes(
        train_vocabulary(sentences, _NUM_TOKENS, list(LANGUAGES), model_type="char")
    )


def write_other_vocabulary(path: Path) -> None:
    """Writes one of the same size, in which letters are other tokens."""
    # Tokens are in the order of how frequent they are: here the last letter leads.
    sentences = [" ".join(LETTERS[i:]) for i in range(len(LETTERS))]
    path.write_bytes(
        train_vocabulary(sentences, _NUM_TOKENS, list(LANGUAGES), model_type="char")
    )


@model_registry.RegisterSingleTaskModel
class Letters(SingleTaskModelParams):
    """Small, and trained as the papers' are."""

    def Train(self) -> InstantiableParams:
        return self._input("train").Set(batch_size=16)

    def Test(self) -> InstantiableParams:
        return self._input("test").Set(batch_size=8, packing=False)

    def Task(self) -> InstantiableParams:
        p = TranslationTask.Params().Set(label_smoothing=0.0)
        layer = TransformerLayer.Params()
        layer.attention_tpl.dim_per_head = 16
        p.pipeline.Set(
            cell_tpl=translation_model(
                num_layers=1,
                hidden_dim=64,
                num_heads=4,
                num_tokens=_NUM_TOKENS,
                model_dim=32,
                dropout_prob=0.0,
                layer_tpl=layer,
            ),
            splits=2,
            num_micro_batches=2,
        )
        p.pipeline.tied = tied_embeddings(p.pipeline.cell_tpl)
        p.train.Set(
            learning_rate=0.01,
            lr_schedule=ScheduleParams("InverseSquareRoot", constant_steps=10_000),
            optimizer=OptimizerParams("Adafactor"),
            max_steps=400,
            ema_decay=0.9,
        )
        p.decode.Set(width=3, num_hypotheses=2)
        return p

    def _input(self, split: str) -> InstantiableParams:
        return TranslationInput.Params().Set(
            data=[
                TsvFile.Params().Set(
                    file=f"{split}.{language}",
                    source_language="abc",
                    target_language=language,
                )
                for language in LANGUAGES
            ],
            vocab_file="letters.model",
            vocab_size=_NUM_TOKENS,
            source_length=24,
            target_length=24,
        )
