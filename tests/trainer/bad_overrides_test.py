"""A misspelt param of a large model is answered with the param that was meant."""

from __future__ import annotations

import random
import re

import pytest

import model_registry
from lingvo_pipe.hyperparams.path_hints import about_path

MODELS = [
    "image.digits.AmoebaNetDigits",
    "image.imagenet.AmoebaNetB557M",
    "mt.cldr.TransformerTiny",
    "lm.giant.L13",
]
NUM_EACH = 6


def _misspelt(draw: random.Random, path: str) -> str:
    """A path with a letter of its last name doubled, left out or another."""
    before, dot, name = path.rpartition(".")
    at = draw.randrange(1, len(name))
    letters = [name[at] * 2, "", "z", "q"]
    return f"{before}{dot}{name[:at]}{draw.choice(letters)}{name[at + 1 :]}"


@pytest.mark.parametrize("name", MODELS)
def test_the_answer_has_the_param_that_was_meant(name: str) -> None:
    draw, found = random.Random(name), set[str]()
    model = model_registry.GetParams(name, "Train")
    # Without the items of values.
    model.Visit(lambda path, value: found.add(re.sub(r"(\[[^]]*\])+$", "", path)))
    long = [path for path in sorted(found) if len(path.rpartition(".")[2]) > 4]
    for path in draw.sample(long, NUM_EACH):
        wrong = _misspelt(draw, path)
        assert wrong not in found
        assert f" {path} (type " in about_path(model, wrong)
