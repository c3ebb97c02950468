"""A decoding run: a checkpoint's translations of a data set, and how good they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tqdm

from lingvo_pipe.training.base_task import BaseTask
from lingvo_pipe.training.decoder import Decoder, Translation
from lingvo_pipe.training.decoder_protocols import DecodeInput
from lingvo_pipe.training.decoder_report import write_report
from lingvo_pipe.training.run_directory import RunDirectory
from lingvo_pipe.training.run_vocabulary import check_vocabulary
from lingvo_pipe.training.run_weights import weights_in_turn


def check_decode_input(input_generator: Any) -> DecodeInput:
    """Returns an input that can be decoded from.

    Raises:
        ValueError: if it can't, or its data can't be read.
    """
    if not isinstance(input_generator, DecodeInput):
        raise ValueError(
            "An input to translate has DecodeBatches and a vocabulary; "
            f"{type(input_generator).__name__} has not. Use a TranslationInput, or add "
            "these two."
        )
    input_generator.DecodeBatches()
    return input_generator


def decode(
    task: BaseTask,
    data: DecodeInput,
    directory: RunDirectory,
    split: str,
    checkpoint: str | None = None,
    follow_seconds: float | None = None,
    log: Callable[[str], None] = tqdm.tqdm.write,
) -> None:
    """Translates a data set and writes translations and scores; see `decoder_report`.

    It does so with one checkpoint or, following a trainer, with one after another.

    Args:
        task: the task, just instantiated.
        data: what to translate.
        directory: of the run that trained the task.
        split: the name of the data.
        checkpoint: see `weights_in_turn`.
        follow_seconds: likewise.
        log: takes a line of text for the user, while a bar may be shown.

    Raises:
        ValueError: if the task, the checkpoint or the vocabulary does not serve, or
            there is nothing to translate.
    """
    decoder = Decoder(task, data.vocabulary)
    check_vocabulary(directory.path, data)
    for step in weights_in_turn(task, directory, checkpoint, follow_seconds, log):
        log(f"Decoding {split} with the checkpoint of step {step}.")
        translations = _translations(decoder, data, split)
        log(write_report(directory.decoder_path, step, split, translations))


def _translations(decoder: Decoder, data: DecodeInput, split: str) -> list[Translation]:
    sentences = tqdm.tqdm(
        decoder(data.DecodeBatches()), unit=" sentences", disable=None, leave=False
    )
    translations = sorted(sentences, key=lambda each: each.place)
    if not translations:
        raise ValueError(
            f"There must be sentences to translate; {split} has none. Check the input."
        )
    return translations
