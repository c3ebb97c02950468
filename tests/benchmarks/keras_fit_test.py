"""A model is measured in plain Keras and in pipelines."""

from __future__ import annotations

import pytest

from tools.benchmarks import keras_fit


@pytest.mark.exhaustive
def test_measures(capsys: pytest.CaptureFixture[str]) -> None:
    keras_fit.compare(["gpt2"], num_turns=1)
    _, _, row = capsys.readouterr().out.splitlines()
    name, plain, *ratios, num_cells, _ = row.strip("| ").split(" | ")
    assert name == "gpt2"
    assert plain.endswith(" s")
    assert all(float(ratio.split()[0]) > 0 for ratio in ratios)
    assert int(num_cells) > 0
