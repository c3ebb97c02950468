"""The vocabulary that a run is trained with.

Under another vocabulary, weights would stand for other tokens, and nothing would fail.
So a run keeps its fingerprint, in `vocabulary.txt`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


def _text(input_generator: Any) -> str | None:
    vocabulary = getattr(input_generator, "vocabulary", None)
    if vocabulary is None:
        return None
    return f"{vocabulary.fingerprint} ({vocabulary.path})\n"
