"""The vocabulary that a run is trained with.

Under another vocabulary, weights would stand for other tokens, and nothing would fail.
So a run keeps its fingerprint, in `vocabulary.txt`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.training.atomic_file import write_atomically

_FILE = "vocabulary.txt"


def keep_vocabulary(directory: Path, input_generator: Any) -> None:
    """Writes which vocabulary an input has, if it has one.

    Args:
        directory: That of the run.
        input_generator: May have a `vocabulary`, with `fingerprint` and `path`.
    """
    text = _text(input_generator)
    if text is not None:
        write_atomically(directory / _FILE, text)


def check_vocabulary(directory: Path, input_generator: Any) -> None:
    """Checks that a run is gone on with under its own vocabulary.

    Args:
        directory: That of the run.
        input_generator: As of `keep_vocabulary`.

    Raises:
        ValueError: If the run was trained with another.
    """
    text, file = _text(input_generator), directory / _FILE
    if text is None or not file.exists():
        return
    kept = file.read_text(encoding="utf-8")
    if kept.split()[0] != text.split()[0]:
        raise ValueError(
            f"A run must keep its vocabulary; that of {directory} was trained with "
            f"{kept.strip()}, and vocab_file is {text.strip()}. Give it the file that "
            "it was trained with, or use another --logdir."
        )


def check_one_vocabulary(train_input: Any, test_input: Any) -> None:
    """Checks that a model is tested under the vocabulary that it is trained with.

    Args:
        train_input: As of `keep_vocabulary`.
        test_input: Likewise.

    Raises:
        ValueError: If they have different vocabularies.
    """
    texts = [_text(train_input), _text(test_input)]
    one, other = (text and text.split()[0] for text in texts)
    if one != other:
        trained, tested = ((text or "none").strip() for text in texts)
        raise ValueError(
            "A model must be tested under the vocabulary that it is trained with; "
            f"vocab_file is {trained} for training, and {tested} for the test. Give "
            "both the same."
        )


def check_num_tokens(layers: Iterable[Params], input_generator: Any) -> None:
    """Checks that layers have a row for each token of the vocabulary.

    On a GPU, a token without one would be read as zeros, and nothing would fail.

    Args:
        layers: Params, some of which may have `num_tokens`.
        input_generator: As of `keep_vocabulary`; its vocabulary has a `size`.

    Raises:
        ValueError: If a layer has fewer.
    """
    vocabulary = getattr(input_generator, "vocabulary", None)
    if vocabulary is None:
        return
    for p in layers:
        if "num_tokens" in p and p.num_tokens < vocabulary.size:
            raise ValueError(
                f"num_tokens must be that of the vocabulary; {p.name} has "
                f"{p.num_tokens:,}, and {vocabulary.path} has {vocabulary.size:,}. Set "
                "it in all layers alike, or give another vocab_file."
            )


def _text(input_generator: Any) -> str | None:
    vocabulary = getattr(input_generator, "vocabulary", None)
    if vocabulary is None:
        return None
    return f"{vocabulary.fingerprint} ({vocabulary.path})\n"
