"""Checks that a model is trained, tested and used with one vocabulary.

With another, weights would mean other tokens, and nothing would fail. So a run saves
its vocabulary and, in `vocabulary.txt`, the fingerprint.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.regular_file import damaged, read_text
from lingvo_pipe.hyperparams import Params

_FILE = "vocabulary.txt"
COPY = "vocabulary.model"


def write_vocabulary(directory: Path, input_generator: Any) -> None:
    """Writes an input's vocabulary, its fingerprint and its path, to a directory."""
    text = _text(input_generator)
    if text is not None:
        write_atomically(directory / _FILE, text)
        file = Path(input_generator.vocabulary.path)
        if file.is_file():
            write_atomically(directory / COPY, file.read_bytes())


def check_vocabulary(directory: Path, input_generator: Any) -> None:
    """Checks that an input has the vocabulary that a run was trained with.

    Raises:
        ValueError: if the run was trained with another vocabulary.
    """
    text, file = _text(input_generator), directory / _FILE
    if text is None or (trained := read_text(file)) is None:
        return
    if not re.fullmatch(r"\S+ \(.+\)\n", trained):
        raise damaged(file, "a vocabulary's fingerprint and its path", trained)
    if trained.split()[0] != text.split()[0]:
        raise UserValueError(
            f"{file}: expected the vocabulary of training, {trained.strip()}, but "
            f"vocab_file is {text.strip()}. Use the file of training, or another "
            "--logdir."
        )


def check_one_vocabulary(train_input: Any, test_input: Any) -> None:
    """Checks that training and test have one vocabulary.

    Raises:
        ValueError: if they have different ones.
    """
    texts = [_text(train_input), _text(test_input)]
    train_fingerprint, test_fingerprint = (text and text.split()[0] for text in texts)
    if train_fingerprint != test_fingerprint:
        trained, tested = ((text or "none").strip() for text in texts)
        raise UserValueError(
            f"vocab_file: expected one vocabulary, got {trained} for training and "
            f"{tested} for the test. Use one file for both."
        )


def check_num_tokens(layers: Iterable[Params], input_generator: Any) -> None:
    """Checks that layers have a row for each token of the vocabulary.

    Raises:
        ValueError: if a layer's `num_tokens` is smaller than the vocabulary.
    """
    vocabulary = getattr(input_generator, "vocabulary", None)
    if vocabulary is None:
        return
    for p in layers:
        if "num_tokens" in p and p.num_tokens < vocabulary.size:
            raise UserValueError(
                f"num_tokens: layer {p.name} has {p.num_tokens:,}, but the vocabulary "
                f"{vocabulary.path} has {vocabulary.size:,}. Set it in all layers, or "
                "use another vocab_file."
            )


def _text(input_generator: Any) -> str | None:
    vocabulary = getattr(input_generator, "vocabulary", None)
    if vocabulary is None:
        return None
    return f"{vocabulary.fingerprint} ({vocabulary.path})\n"
