"""Errors have the texts in the tables beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wordings import hyperparams_wordings, pipeline_wordings, training_wordings
from tests.wordings.wording import Wording

WORDINGS = [
    *hyperparams_wordings.WORDINGS,
    *pipeline_wordings.WORDINGS,
    *training_wordings.WORDINGS,
]


@pytest.mark.parametrize("wording", WORDINGS, ids=str)
def test_the_text_is_as_recorded(wording: Wording, tmp_path: Path) -> None:
    assert wording.raised(tmp_path) == (wording.kind, wording.text)


@pytest.mark.parametrize("wording", WORDINGS, ids=str)
def test_the_text_names_the_given_value_and_ends(wording: Wording) -> None:
    assert not wording.problems()
