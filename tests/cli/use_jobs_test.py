"""Jobs use weights in the model of training alone, and check flags before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from lingvo_pipe.cli.use_jobs import _fitting, write_texts
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


def _write(folder: Path, output: str = "-", **settings: Any) -> None:
    (folder / "texts").write_text("a\n")
    unused: Any = None  # The model is not built.
    write_texts(unused, unused, f"{folder}/texts", output, None, settings)


@pytest.mark.parametrize("name", ["top_k", "top_p", "seed"])
def test_a_setting_of_draws_is_refused_where_nothing_is_drawn(
    tmp_path: Path, name: str
) -> None:
    with fails(path=f"--{name}", got=1):
        _write(tmp_path, temperature=0.0, **{name: cast(Any, 1)})


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with fails(path="--output_file"):
        _write(tmp_path, f"{tmp_path}/absent/texts")
