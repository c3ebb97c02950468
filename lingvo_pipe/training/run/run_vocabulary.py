"""Checks that a model is trained, tested and used with one vocabulary.

With another vocabulary, weights would belong to other tokens, without any error. So a
run saves its vocabulary and, in `vocabulary.txt`, the vocabulary's fingerprint.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lingvo_pipe.core.atomic_file import write_atomically
from lingvo_pipe.core.errors import UserValueError, Words
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
    """Raises ValueError unless a run was trained with an input's vocabulary."""
    text, file = _text(input_generator), directory / _FILE
    if text is None or (trained := read_text(file)) is None:
        return
    if not re.fullmatch(r"\S+ \(.+\)\n", trained):
        raise damaged(file, "a vocabulary's fingerprint and its path", trained)
    if trained.split()[0] != text.split()[0]:
        raise UserValueError(
            path="input.vocab_file",
            expected=f"{trained.strip()}, the vocab_file of training by {file}",
            got=Words(text.strip()),
        )


def check_one_vocabulary(train_input: Any, test_input: Any) -> None:
    """Raises ValueError unless both inputs have the same vocabulary, or none."""
    trained, tested = (_text(x) or "none" for x in (train_input, test_input))
    if trained.split()[0] != tested.split()[0]:
        got = f"{trained.strip()} for training and {tested.strip()} for the test"
        expected = "one vocabulary"
        raise UserValueError(path="input.vocab_file", expected=expected, got=Words(got))


def check_num_tokens(layers: Iterable[Params], input_generator: Any) -> None:
    """Raises ValueError if a layer's `num_tokens` is smaller than the vocabulary.

    It may be larger, such as a multiple of 128. Decoding predicts no token beyond.
    """
    vocabulary = getattr(input_generator, "vocabulary", None)
    if vocabulary is None:
        return
    for p in layers:
        if "num_tokens" in p and p.num_tokens < vocabulary.size:
            raise UserValueError(
                path=f"{p.name}.num_tokens",
                expected=f"at least {vocabulary.size}, as {vocabulary.path} has",
                got=p.num_tokens,
                hint="Set it in all layers, or use another vocab_file.",
            )


def _text(input_generator: Any) -> str | None:
    vocabulary = getattr(input_generator, "vocabulary", None)
    if vocabulary is None:
        return None
    return f"{vocabulary.fingerprint} ({vocabulary.path})\n"
