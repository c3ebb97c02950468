"""Paths as text and as steps."""

from __future__ import annotations

import random

import pytest

from lingvo_pipe.core.paths import Item, Name, Step, format_path, parse_path
from tests.support.errors import fails


def random_path(rng: random.Random) -> tuple[Step, ...]:
    keys: list[int | str] = ["a", "it's", 'say "x"', "a.b[0]", "\n;:", "\\", "", "é"]
    keys += [0, 7, -1]
    steps: list[Step] = [Name("a")]
    for _ in range(rng.randrange(5)):
        steps.append(Name("b_1") if rng.random() < 0.5 else Item(rng.choice(keys)))
    return tuple(steps)


@pytest.mark.parametrize("seed", range(50))
def test_paths_are_read_as_written(seed: int) -> None:
    steps = random_path(random.Random(seed))
    assert parse_path(format_path(steps)) == steps


@pytest.mark.parametrize("text", ["", ".a", "a..b", "a.", "a[x]", "[0]", "a[", "a[0]b"])
def test_other_texts_are_refused(text: str) -> None:
    with fails(got=text):
        parse_path(text)
