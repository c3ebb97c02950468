"""Each model is measured in plain Keras and in pipelines."""

from __future__ import annotations

import pytest

from tools.benchmarks import keras_fit


@pytest.mark.exhaustive
def test_measures(capsys: pytest.CaptureFixture[str]) -> None:
    keras_fit.compare(num_turns=1)
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[1] for row in rows] == list(keras_fit.MODELS)
    for row in rows:
        _, plain, *ratios, num_cells, _ = row.strip("| ").split(" | ")
        assert plain.endswith(" s")
        assert all(float(ratio.split()[0]) > 0 for ratio in ratios)
        assert int(num_cells) > 0
