"""Entries and templates as people type them, such as in --model_params_override."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserAttributeError
from lingvo_pipe.hyperparams import InstantiableParams, Params
from tests.hyperparams.sample_params import MODULE, Layer, model_params, params
from tests.support.errors import fails

LAYER = f"params/{MODULE}/Layer"


class NoParams:
    """Its Params are made by hand."""


class NeedsArgument:
    @classmethod
    def Params(cls, dim: int) -> InstantiableParams:
        raise AssertionError(dim)


class OthersParams:
    @classmethod
    def Params(cls) -> InstantiableParams:
        return InstantiableParams(Layer)


def model() -> Params:
    p = model_params()
    p.by_name["a;b"] = Layer.Params()
    p.Define("tpl", None, "")
    return p


# ---- Entries.


@pytest.mark.parametrize(
    ("default", "text", "kind"),
    [
        (1, "[2, 5]", "list"),
        (1, "(2, 5)", "tuple"),
        (1.5, "{a: 1}", "dict"),
        (1, "auto", "str"),
        ([1], "auto", "str"),
    ],
)
def test_an_error_shows_how_to_write_a_value_of_another_kind(
    default: Any, text: str, kind: str
) -> None:
    p = params(x=default)
    entry = f"x ({kind}) : {text}"
    with fails(path="x", got=text) as info:
        p.FromText(f"x : {text}")
    assert f"'{entry}'" in info.value.hint
    p.FromText(entry)
    assert type(p.x).__name__ == kind


@pytest.mark.parametrize("text", ["x : 1.5.2", "x (int) : [2]", "x : [2"])
def test_an_error_shows_nothing_else_for_an_unreadable_value(text: str) -> None:
    with fails(path="x", hint="x has type int, default 1."):
        params(x=1).FromText(text)


def test_blanks_comments_and_separators() -> None:
    text = """
      # A comment; name : no
    name:  'a; b' ;train.max_steps:1e3;; # by_name : None
      cells[1].dim   :   8 ; by_name['a;b'].dim : 9
    tpl : [1,
           'a;b', {c: d;}]
    """
    p = model().FromText(text, separator=";")
    assert p.name == "a; b"
    assert p.train.max_steps == 1000
    assert (p.cells[1].dim, p.by_name["a;b"].dim) == (8, 9)
    assert p.tpl == [1, "a;b", {"c": "d;"}]
    p = model().FromText("name : a # b; train.max_steps : 1")
    assert p.name == "a # b; train.max_steps : 1"


@pytest.mark.parametrize("text", ["name", "name = a", "= a", ": a", "na'me : a"])
def test_a_malformed_entry_is_refused(text: str) -> None:
    with fails(expected="an entry `path : value`", got=text) as info:
        model().FromText(text)
    assert ("name has type str" in info.value.hint) == text.startswith("name")


def test_all_problems_are_reported_and_nothing_is_changed() -> None:
    p = model()
    with fails(UserAttributeError) as info:
        p.FromText(
            f"name : new; tpl : {LAYER}; tpl.dim : 9; tpl.dmi : 3;"
            "train.max_steps : many; oops; cells[0].dim : 5; nmae : x",
            separator=";",
        )
    assert [(x.path, x.got) for x in info.value.problems] == [
        ("tpl.dmi", "dmi"),
        ("train.max_steps", "many"),
        ("", "oops"),
        ("nmae", "nmae"),
    ]
    assert "Near it: name" in info.value.problems[-1].hint
    assert p == model()


def test_a_type_may_be_named() -> None:
    p = model().FromText("tpl (str) : 5\nname (int):7\ntrain.max_steps (float) : 1")
    assert (p.tpl, p.name) == ("5", 7)
    assert type(p.train.max_steps) is float
    assert model().FromText("name (None) : 5").name == 5
    assert model().FromText("tpl : 5", type_overrides={"tpl": "str"}).tpl == "5"


def test_an_unknown_type_is_refused() -> None:
    for text, kinds in (("name (itn) : 5", {}), ("name : 5", {"name": "itn"})):
        with fails(path="name", got="itn") as info:
            model().FromText(text, type_overrides=kinds)
        assert "'int'" in info.value.hint


# ---- Templates.


def test_a_template_becomes_new_params_of_its_class() -> None:
    p = model().FromText(
        f"tpl : {LAYER}\ntpl.dim : 9\ncells : [{LAYER}, params(a, b)]\ncells[1].b : 3"
    )
    assert p.tpl == Layer.Params().Set(dim=9)
    assert p.cells[0] == Layer.Params()
    assert (p.cells[1].a, p.cells[1].b) == (None, 3)


def test_a_template_with_names_has_these_names() -> None:
    p = model().FromText(f"tpl : {LAYER}(more)\ntpl.more : 1").tpl
    assert (p.cls, p.GetKeys(), p.more) == (Layer, ["cls", "more"], 1)
    assert model().FromText("tpl : params/None(a)").tpl.cls is None
    assert model().FromText("tpl : params()").tpl == Params()


@pytest.mark.parametrize("cls", [NoParams, NeedsArgument, OthersParams])
def test_a_class_without_params_of_its_own_has_plain_ones(cls: type) -> None:
    p = model().Set(tpl=InstantiableParams(cls))
    p.tpl.Define("dim", 3, "")
    assert model().FromText(p.ToText()) == p
    text = f"tpl : params/{__name__}/{cls.__name__}"
    assert model().FromText(text).tpl == InstantiableParams(cls)


def test_the_class_of_a_template_may_be_swapped() -> None:
    p = model().FromText(f"cells[0].cls : type/{__name__}/NoParams")
    assert (p.cells[0].cls, p.cells[0].dim) == (NoParams, 4)


# ---- Errors of an imported module.


def test_an_import_error_inside_a_module_is_raised_and_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_layer.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    p = model()
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        p.FromText("name : new\ntpl : type/broken_layer/Layer")
    assert p == model()
    assert "broken_layer" not in sys.modules
