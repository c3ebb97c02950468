"""Small texts and their vocabulary, and what is logged."""

from __future__ import annotations

from pathlib import Path

import pytest
from absl import logging

from lingvo_pipe.input.text.vocabulary import Vocabulary
from tests.input.text.small_texts import write_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of `small_texts`."""
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary(str(folder / "small.vocab"))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings of a test."""
    lines: list[str] = []
    monkeypatch.setattr(
        logging, "warning", lambda text, *args: lines.append(text % args)
    )
    return lines
