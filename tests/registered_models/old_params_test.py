"""Texts of params that earlier versions wrote mean what they meant."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import model_registry
from lingvo_pipe.hyperparams.differences import diff_texts

_FILE = Path(__file__).parent / "data" / "old_params.json.gz"
# Model -> text, as before modules moved to rooms with names. ROOT is where the project
# was.
TEXTS: dict[str, str] = json.loads(gzip.decompress(_FILE.read_bytes()))
_ROOT = str(Path(model_registry.__file__).parents[1])


@pytest.mark.parametrize("name", TEXTS)
def test_they_are_those_of_the_model(name: str) -> None:
    now = model_registry.GetParams(name, "Train")
    text = TEXTS[name].replace("ROOT/", f"{_ROOT}/")
    changes = diff_texts(now.ToText(), text).splitlines()
    # Params that are new, and not set.
    assert [
        line for line in changes if not re.fullmatch(r"> \S+ : (None|False)", line)
    ] == []
    again = now.Copy()
    again.FromText(text)
    assert again.ToText() == now.ToText()
