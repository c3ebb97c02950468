"""Values that no model can be built with are named by their params."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import model_registry
from lingvo_pipe.cli.param_values import check_values, naming_override
from lingvo_pipe.core.errors import UserKeyError
from lingvo_pipe.hyperparams import Params
from tests.support.errors import fails


def _model(**values: Any) -> Params:
    inner = Params()
    inner.Define("rate", 0.5, "")
    inner.Define("limit", math.inf, "")
    p = Params()
    p.Define("task", inner, "")
    p.Define("seed", 0, "")
    p.Define("items", [0.0, {"a": 1}], "")
    p.Define("schedule", None, "")
    return p.Set(**values)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("task.rate", math.nan),
        ("task.rate", np.float64(1e39)),
        ("task.limit", -math.inf),
        ("seed", 2**64),
        ("items[1]['a']", -(10**30)),
        ("task", None),
        ("task", 3),
    ],
)
def test_impossible_values_are_refused(path: str, value: Any) -> None:
    with fails(path=path) as info:
        check_values(_model(**{path: value}))
    assert repr(info.value.got) == repr(value)


def test_all_of_them_are_named() -> None:
    with fails() as info:
        check_values(_model(**{"task.rate": math.nan, "seed": 2**70}))
    assert [problem.path for problem in info.value.problems] == ["task.rate", "seed"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"task.rate": 3e38, "seed": 2**64 - 1},
        {"task.rate": None, "schedule": Params()},
        {"items": [True, "nan", None]},
    ],
)
def test_other_values_are_allowed(values: dict[str, Any]) -> None:
    check_values(_model(**values))


@pytest.mark.parametrize(
    "name", ["image.digits.AmoebaNetDigits", "mt.cldr.TransformerTiny", "lm.giant.L13"]
)
def test_registered_models_have_possible_values(name: str) -> None:
    check_values(model_registry.GetParams(name, "Train"))


def test_a_temperature_may_be_infinite() -> None:
    model = model_registry.GetParams("mt.cldr.TransformerTiny", "Train")
    model.input.temperature = math.inf
    check_values(model)
    model.input.temperature = -math.inf
    with fails(path="input.temperature", got=-math.inf):
        check_values(model)


def test_an_override_is_named_in_an_error_that_names_no_param() -> None:
    with (
        fails(path="--model_params_override", got="a : None") as info,
        naming_override("a : None"),
    ):
        len(None)  # type: ignore[arg-type]
    assert "TypeError: " in info.value.hint
    with pytest.raises(TypeError), naming_override(""):
        len(None)  # type: ignore[arg-type]
    with pytest.raises(UserKeyError, match="^'b'$"), naming_override("a : None"):
        raise UserKeyError("'b'")
