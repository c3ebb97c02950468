"""Errors about a path describe the param, or those with similar paths."""

from __future__ import annotations

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.path_hints import about_path
from tests.hyperparams.sample_params import model_params, params
from tests.support.errors import fails


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("train.lr", "type float, default 0.5"),
        ("train.max_steps", "type int, default 10, value 30"),
        ("cells[1].sub_tpl", "type any, default None"),
        ("pair[1]", "type int, value 1"),
        ("by_name[3]", "type list, value [1, 2]"),
        ("layer", "type params, default Params of Layer"),
        ("train", "type params, default Params"),
        ("name", f"type str, default 'm', value '{'long ' * 9}l..."),
    ],
)
def test_a_param_has_type_default_and_value(path: str, text: str) -> None:
    p = model_params().Set(**{"train.max_steps": 30, "name": "long " * 20})
    assert about_path(p, path) == f"{path} has {text}."


def test_a_value_without_a_text_form_is_shown_as_python_does() -> None:
    text = about_path(params(odd=b"x"), "odd")
    assert text == "odd has type bytes, default b'x'."


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("train.max_step", ["train.max_steps"]),
        ("trian.max_stpes", ["train.max_steps"]),
        ("lr", ["train.lr"]),
        ("train..lr", ["train.lr"]),
        ("max_steps", ["train.max_steps"]),
        ("train.max_steps[", ["train.max_steps"]),
        # First items, and those that the path names; the longest common end first.
        ("cells[1].dmi", ["cells[1].dim", "cells[0].dim"]),
        ("by_name['lfet'].dim", ["by_name['left'].dim"]),
    ],
)
def test_an_unknown_path_is_answered_by_those_near_it(
    path: str, near: list[str]
) -> None:
    text = about_path(model_params(), path)
    assert text.startswith(f"Near it: {near[0]} (type ")
    assert all(f" {each} (type " in text for each in near)
    assert text.count(" (type ") <= 3


def test_a_path_like_no_other_has_no_description() -> None:
    assert about_path(model_params(), "zzzzzz") == ""
    assert about_path(Params(), "a") == ""


def test_a_param_set_twice_is_refused() -> None:
    """An earlier version silently used the last value."""
    p = model_params()
    before = p.Copy()
    with fails(path="train.lr"):
        p.FromText("train.lr : 0.1; name : a; train.lr : 0.2", separator=";")
    assert p == before
