"""Jobs use weights in the model of training alone, and check flags before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.cli.use_jobs import _check_texts, _fitting, write_texts
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.support.errors import fails


def test_a_run_that_resumed_as_another_model_is_refused(tmp_path: Path) -> None:
    """Once a follower went on with the model of before, without a line."""
    directory = RunDirectory(tmp_path, "toy.Toy")
    layer, longer = "layer.dim : 1\n", "task.train.max_steps : 9\n"

    def saves() -> Iterator[int]:
        for step, text in enumerate((layer, layer + longer, "layer.dim : 2\n")):
            directory.write_params(text)
            yield step

    steps = _fitting(saves(), directory, layer, layer, ())
    assert [next(steps), next(steps)] == [0, 1]
    with fails(path="layer.dim"):
        next(steps)
    assert [*_fitting(saves(), directory, layer, layer, ["layer"])] == [0, 1, 2]


_PROMPTS = SimpleNamespace(vocabulary=0, PromptBatch=len)
_METHODS = ("TargetLanguages", "NumTokens", "SentenceBatch")
_SENTENCES = SimpleNamespace(vocabulary=0, **dict.fromkeys(_METHODS, len))


@pytest.mark.parametrize(("name", "value"), [("top_k", 1), ("top_p", 0.5), ("seed", 1)])
def test_a_setting_of_draws_is_refused_where_nothing_is_drawn(
    name: str, value: float
) -> None:
    settings = {name: value}
    _check_texts(_PROMPTS, None, settings)
    with fails(path=f"--{name}", got=value):
        _check_texts(_PROMPTS, None, {**settings, "temperature": 0.0})
    # Once a translator's user was told to raise the temperature.
    with fails(path=f"--{name}", expected="a language model", got=value):
        _check_texts(_SENTENCES, "en", {**settings, "temperature": 0.0})


def test_a_language_is_refused_where_nothing_is_translated() -> None:
    _check_texts(_SENTENCES, "en", {})
    with fails(path="--target_language", got="en"):
        _check_texts(_PROMPTS, "en", {})


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("a\n")
    unused: Any = None  # The model is not built.
    with fails(path="--output_file"):
        write_texts(
            unused, unused, f"{tmp_path}/texts", f"{tmp_path}/absent/texts", None, {}
        )
