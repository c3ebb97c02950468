"""Tied variables, and errors that name the given paths."""

from __future__ import annotations

import numpy as np
import pytest

from lingvo_pipe.layers.core.tied_variables import tying
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer


def _create(ties: dict[str, str]) -> SequentialLayer:
    layers = [
        FCLayer.Params().Set(name=name, input_dim=2, output_dim=dim)
        for name, dim in (("a", 2), ("b", 2), ("c", 3))
    ]
    with tying(ties, "model"):
        return SequentialLayer.Params().Set(name="model", sub=layers).Instantiate()


def _paths() -> list[str]:
    return [path.removeprefix("model/") for path in _create({}).VariablePaths()]


def test_one_weight_has_two_paths() -> None:
    first, _, second, *_ = _paths()
    model = _create({second: first})
    paths = model.VariablePaths()
    assert f"model/{first}" in paths
    assert f"model/{second}" not in paths


@pytest.mark.parametrize("prefix", ["model/", "", "x"])
def test_an_unknown_weight_is_refused(prefix: str) -> None:
    """Following the hint leads to a valid tie."""
    first, _, second, *_ = _paths()
    given = f"{prefix}{second}" if prefix else second + second[-1]
    match = rf"'{given}'.*\bmodel\b.*'{second}'"
    with pytest.raises(ValueError, match=match) as caught:
        _create({given: first})
    near = str(caught.value).rpartition("]")[2].split("'")[1]
    assert near == second
    _create({near: first})


def test_a_weight_keeps_its_name_and_value_behind_the_other() -> None:
    first, _, second, *_ = _paths()
    alone, model = _create({}).VariablePaths(), _create({first: second})
    paths = model.VariablePaths()
    assert list(paths) == [path for path in alone if path != f"model/{first}"]
    np.testing.assert_array_equal(paths[f"model/{second}"], alone[f"model/{second}"])
    assert model.sub[0].vars.w is model.sub[1].vars.w


def test_chains_of_ties_are_refused() -> None:
    first, _, second, *_ = _paths()
    match = rf"\bmodel\b.*\b{first}\b.*\b{second}\b.*\['"
    with pytest.raises(ValueError, match=match):
        _create({first: second, second: first})


def test_weights_of_two_shapes_can_not_be_one() -> None:
    first, last = _paths()[0], _paths()[-2]
    match = rf"\b{last}\b.*\(2, 3\).*\b{first}\b.*\(2, 2\)"
    with pytest.raises(ValueError, match=match):
        _create({last: first})
    # Once the second was called as the first.
    with pytest.raises(ValueError, match=match):
        _create({first: last})
