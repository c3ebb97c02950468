"""Paths and near names."""

from __future__ import annotations

import random

import pytest

from lingvo_pipe.hyperparams.path import Item, Name, Step, format_path, parse_path
from lingvo_pipe.hyperparams.suggest import did_you_mean, near_names


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


def test_near_names_at_any_length() -> None:
    names = ["lr", "max_steps", "dim", "learning_rate"]
    assert near_names("rl", names) == ["lr"]
    assert near_names("LR", names) == ["lr"]
    assert near_names("max_stpes", names) == ["max_steps"]
    assert near_names("steps", names) == ["max_steps"]
    assert near_names("q", names) == []
    assert did_you_mean("din", names) == " Did you mean 'dim'?"
    assert did_you_mean("q", names) == ""
