"""Tied variables, and errors that name the given paths."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.layers.core.tied_variables import tying
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from tests.support.errors import fails


def _create(ties: dict[str, str]) -> SequentialLayer:
    layers = [
        FCLayer.Params().Set(name=name, input_dim=2, output_dim=dim)
        for name, dim in (("a", 2), ("b", 2), ("c", 3))
    ]
    with tying(ties, "model"):
        return SequentialLayer.Params().Set(name="model", sub=layers).Instantiate()


def test_one_weight_has_two_paths() -> None:
    paths = _create({"b/w": "a/w"}).VariablePaths()
    assert "model/a/w" in paths
    assert "model/b/w" not in paths


@pytest.mark.parametrize("tied", ["model/b/w", "b/ww", "xb/w"])
def test_an_unknown_weight_is_refused(tied: str) -> None:
    with fails(path="model.tied", got=tied) as info:
        _create({tied: "a/w"})
    assert info.value.hint.startswith("Did you mean 'b/w'")


def test_a_weight_keeps_its_name_and_value_behind_the_other() -> None:
    alone, model = _create({}).VariablePaths(), _create({"a/w": "b/w"})
    paths = model.VariablePaths()
    assert list(paths) == [path for path in alone if path != "model/a/w"]
    np.testing.assert_array_equal(paths["model/b/w"], alone["model/b/w"])
    assert model.sub[0].vars.w is model.sub[1].vars.w


def test_several_unknown_weights_are_named_in_their_order() -> None:
    unknown = [f"b/w{i}" for i in range(5)]
    with pytest.raises(UserValueError) as info:
        _create(dict.fromkeys(reversed(unknown), "a/w"))
    assert re.findall(r"b/w\d", str(info.value)) == unknown


def test_chains_of_ties_are_refused() -> None:
    with fails(path="model.tied['a/w']", got="b/w"):
        _create({"a/w": "b/w", "b/w": "a/w"})


@pytest.mark.parametrize("ties", [{"c/w": "a/w"}, {"a/w": "c/w"}])
def test_weights_of_two_shapes_can_not_be_one(ties: dict[str, str]) -> None:
    """In the second case the weight was created earlier, as a/w."""
    with fails(path="model/c/w") as info:
        _create(ties)
    assert info.value.got[0] == (2, 3)
    assert re.search(r"\ba/w\b.*\(2, 2\)", info.value.expected)
