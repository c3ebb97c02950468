"""Errors say what the tables beside this file record, and in the form they have."""

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
def test_this_is_told(wording: Wording, tmp_path: Path) -> None:
    assert wording.told(tmp_path) == (wording.kind, wording.text)


@pytest.mark.parametrize("wording", WORDINGS, ids=str)
def test_it_names_what_was_given_and_ends(wording: Wording) -> None:
    assert not wording.faults()
