"""Entries as people type them, such as those of --model_params_override."""

from __future__ import annotations

import enum
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.hyperparams import InstantiableParams, Params


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Layer:
    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("dim", 4, "")
        return p


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


def one_param(default: Any) -> Params:
    p = Params()
    p.Define("x", default, "")
    return p


def model() -> Params:
    train = Params()
    train.Define("max_steps", 10, "")
    p = Params()
    p.Define("name", "m", "")
    p.Define("train", train, "")
    p.Define("cells", [Layer.Params(), Layer.Params()], "")
    p.Define("by_name", {"a;b": Layer.Params()}, "")
    p.Define("tpl", None, "")
    return p


READ = [
    # A bool.
    *[(True, text, False) for text in ("false", "False", "FALSE", "0")],
    *[(False, text, True) for text in ("true", "True", "TRUE", "1")],
    # An int, however spelt.
    *[(3, text, 1000) for text in ("1000", "1_000", "1e3", "1E3", "1000.0", "+1000")],
    (3, "-7", -7),
    (3, "1e30", 10**30),
    # A float.
    *[(0.5, text, 0.001) for text in ("1e-3", "0.001", "1E-3", ".001")],
    (0.5, "2", 2.0),
    (0.5, "-inf", -math.inf),
    (0.5, "Infinity", math.inf),
    # A string: the bare rest, or quoted.
    ("a", "b c: d, 'e'", "b c: d, 'e'"),
    ("a", "5", "5"),
    ("a", "true", "true"),
    ("a", "[1]", "[1]"),
    ("a", "don't", "don't"),
    ("a", "", ""),
    ("a", "'None'", "None"),
    ("a", '"it\'s"', "it's"),
    ("a", r"'\n\t\''", "\n\t'"),
    # Containers, of anything.
    ([1], "[]", []),
    ([1], "[1, 2,]", [1, 2]),
    ([1], "(1, 2)", [1, 2]),
    ((1,), "[1, 2]", (1, 2)),
    ((1,), "()", ()),
    ([1], "[a, 'b,]', 1e3, true, None, [x y]]", ["a", "b,]", 1e3, True, None, ["x y"]]),
    ({}, "{a: 1, 'b': [2], (1, 2): {}}", {"a": 1, "b": [2], (1, 2): {}}),
    # Symbols.
    (Color.RED, "BLUE", Color.BLUE),
    (Color.RED, f"enum/{__name__}/Color.BLUE", Color.BLUE),
    (dict, f"type/{__name__}/Layer", Layer),
    (math.sin, "func/math/cos", math.cos),
    (math.sin, f"type/{__name__}/Layer", Layer),
    # None takes what the text looks like.
    (None, "true", True),
    (None, "12", 12),
    (None, "1_000", 1000),
    (None, "1e3", 1000.0),
    (None, "inf", math.inf),
    (None, "word", "word"),
    (None, "two words: so", "two words: so"),
    (None, "params", "params"),
    (None, "type(x)", "type(x)"),
    (None, "'12'", "12"),
    (None, "''", ""),
    (None, "[1, a]", [1, "a"]),
    (None, "(1,)", (1,)),
    (None, "{}", {}),
    (None, "func/math/cos", math.cos),
    (None, f"enum/{__name__}/Color.BLUE", Color.BLUE),
    # So does what has no text form.
    (object(), "12", 12),
    # Every param takes None.
    (None, "None", None),
    (True, "None", None),
    (1, "None", None),
    (0.5, "None", None),
    ("a", "None", None),
    ([1], "None", None),
    (Color.RED, "None", None),
    (dict, "None", None),
    (Params(), "None", None),
]


@pytest.mark.parametrize(("default", "text", "value"), READ)
def test_a_value_is_read_as_the_type_it_replaces(
    default: Any, text: str, value: Any
) -> None:
    p = one_param(default).FromText(f"x : {text}")
    assert p.x == value
    assert type(p.x) is type(value)


def test_nan_is_read() -> None:
    assert math.isnan(one_param(0.5).FromText("x : nan").x)
    assert math.isnan(one_param(None).FromText("x : nan").x)


REFUSED = [
    (True, "maybe", "bool.*true, false.*'maybe'"),
    (True, "2", "bool.*true, false.*'2'"),
    (3, "1.5", r"int.*'1\.5'"),
    (3, "inf", "int.*'inf'"),
    (3, "1e999999999", "int.*'1e999999999'"),
    (3, "", "int.*''"),
    (3, "'3'", "int.*'3'"),
    (3, "3/1", "int.*'3/1'"),
    (0.5, "fast", "float.*inf.*nan.*'fast'"),
    ("a", "'b", r"str.*'b\b"),
    ("a", "'b' c", "str.*'b' c"),
    ([1], "5", r"\[a, b\].*\(a, b\).*'5'"),
    ((1,), "{}", r"\[a, b\].*\(a, b\).*'\{\}'"),
    ({}, "[1]", r"\{'a': b\}.*'\[1\]'"),
    ([1], "[1", r"','.*'\]'.*'\[1'"),
    ([1], "[1 'a']", r"','.*'\]'.*\"'a'\]\""),
    ([1], "[1, , 2]", r"', 2\]'.*'\[1, , 2\]'"),
    ([1], "[1] 2", r"'2'.*'\[1\] 2'"),
    ({}, "{1}", r"':'.*'\}'.*'\{1\}'"),
    ({}, "{[1]: 2}", r"dict.* \[1\]"),
    (Color.RED, "BLU", "Color.*RED, BLUE.*'BLU'.*'BLUE'"),
    (Color.RED, "enum/math/pi", r"'enum/math/pi'.*enum.*3\.14"),
    (dict, "Layer", "`type/module/Name`.*`func/module/name`.*'Layer'"),
    (dict, "type/math/cos", "'type/math/cos'.*type.*<built-in.*cos>"),
    (dict, "func/math/coss", "'math'.*'coss'.*'cos'"),
    (dict, "type/no.such/A", r"'no\.such'"),
    (dict, "type/math.x/A", r"'math\.x'"),
    (dict, "type/Layer", "`module/Name`.*'Layer'"),
    (dict, "type/..x/A", r"`module/Name`.*'\.\.x/A'"),
    (None, "type/no_such/A", "'no_such'"),
    (None, "", "''"),
    (
        Params(),
        "x",
        r"`params/module/Class`.*`params\(name, \.\.\.\)`.*'x'",
    ),
    (Params(), "params(a) b", r"`params/module/Class`.*'params\(a\) b'"),
    (Params(), "params(A)", "name.*'A'"),
]


@pytest.mark.parametrize(("default", "text", "message"), REFUSED)
def test_a_wrong_value_is_refused_with_its_path(
    default: Any, text: str, message: str
) -> None:
    p = one_param(default)
    with pytest.raises(ValueError, match=f"'x'.*{message}"):
        p.FromText(f"x : {text}")
    assert p.x is default


def test_an_enum_by_override_needs_its_class() -> None:
    with pytest.raises(ValueError, match=r"'x'.*`enum/module/Class\.MEMBER`.*'BLUE'"):
        one_param(None).FromText("x (enum) : BLUE")


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
def test_a_value_of_another_kind_is_told_how_to_be_written(
    default: Any, text: str, kind: str
) -> None:
    p = one_param(default)
    entry = f"x ({kind}) : {text}"
    with pytest.raises(ValueError, match=re.escape(f"'{entry}'")):
        p.FromText(f"x : {text}")
    p.FromText(entry)
    assert type(p.x).__name__ == kind


@pytest.mark.parametrize("text", ["x : 1.5.2", "x (int) : [2]", "x : [2"])
def test_what_looks_like_nothing_else_is_not_told_more(text: str) -> None:
    with pytest.raises(ValueError, match="'x'.*int") as caught:
        one_param(1).FromText(text)
    assert "'x (" not in str(caught.value)


def test_blanks_comments_and_separators() -> None:
    text = """
      # A comment; name : no
    name:  a # b   ;train.max_steps:1e3;; # by_name : None
      cells[1].dim   :   8 ; by_name['a;b'].dim : 9
    tpl : [1,
           'a;b', {c: d;}]
    """
    p = model().FromText(text, separator=";")
    assert p.name == "a # b"
    assert p.train.max_steps == 1000
    assert (p.cells[1].dim, p.by_name["a;b"].dim) == (8, 9)
    assert p.tpl == [1, "a;b", {"c": "d;"}]


def test_a_semicolon_separates_only_if_asked_to() -> None:
    assert model().FromText("name : a; train.max_steps : 1").name.startswith("a; train")
    assert model().FromText("name : 'a; b'; tpl : 'c'", separator=";").name == "a; b"


@pytest.mark.parametrize("text", ["name", "name = a", "= a", ": a", "na'me : a"])
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"`path : value`.*{text!r}"):
        model().FromText(text)


def test_unknown_names_are_refused_by_their_path() -> None:
    with pytest.raises(AttributeError, match=r"'train\.max_step'.*'max_steps'"):
        model().FromText("train.max_step : 3")
    with pytest.raises(ValueError, match=r"'train\.\.max_steps'"):
        model().FromText("train..max_steps : 3")


def test_all_faults_are_reported_and_nothing_is_changed() -> None:
    p = model()
    with pytest.raises(AttributeError, match=r"\b4\b") as caught:
        p.FromText(
            f"name : new; tpl : params/{__name__}/Layer; tpl.dim : 9; tpl.dmi : 3;"
            "train.max_steps : many; oops; cells[0].dim : 5; nmae : x",
            separator=";",
        )
    head, *faults = str(caught.value).splitlines()
    assert "4" in head
    tokens = [
        "'tpl'.*'dmi'.*'dim'",
        r"'train\.max_steps'.*int.*'many'",
        "'oops'",
        "'nmae'.*'name'",
    ]
    for token, fault in zip(tokens, faults, strict=True):
        assert re.search(token, fault)
    assert p == model()


def test_a_type_may_be_named() -> None:
    p = model().FromText("tpl (str) : 5\nname (int):7\ntrain.max_steps (float) : 1")
    assert (p.tpl, p.name) == ("5", 7)
    assert type(p.train.max_steps) is float
    assert model().FromText("name (None) : 5").name == 5
    assert model().FromText("tpl : 5", type_overrides={"tpl": "str"}).tpl == "5"


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'name'.*None, bool, int, float.*'itn'"):
        model().FromText("name (itn) : 5")
    with pytest.raises(ValueError, match="'name'.*'itn'.*'int'"):
        model().FromText("name : 5", type_overrides={"name": "itn"})


# ---- Templates.


def test_a_template_is_a_new_one_of_its_class() -> None:
    p = model().FromText(
        f"tpl : params/{__name__}/Layer\ntpl.dim : 9\n"
        f"cells : [params/{__name__}/Layer, params(a, b)]\ncells[1].b : 3"
    )
    assert p.tpl == Layer.Params().Set(dim=9)
    assert p.cells[0] == Layer.Params()
    assert (p.cells[1].a, p.cells[1].b) == (None, 3)


def test_a_template_with_names_has_those() -> None:
    p = model().FromText(f"tpl : params/{__name__}/Layer(more)\ntpl.more : 1").tpl
    assert (p.cls, p.GetKeys(), p.more) == (Layer, ["cls", "more"], 1)
    assert model().FromText("tpl : params/None(a)").tpl.cls is None
    assert model().FromText("tpl : params()").tpl == Params()


@pytest.mark.parametrize("cls", [NoParams, NeedsArgument, OthersParams])
def test_a_class_without_params_of_its_own_is_held_by_plain_ones(cls: type) -> None:
    p = model().Set(tpl=InstantiableParams(cls))
    p.tpl.Define("dim", 3, "")
    assert model().FromText(p.ToText()) == p
    text = f"tpl : params/{__name__}/{cls.__name__}"
    assert model().FromText(text).tpl == InstantiableParams(cls)


def test_the_class_of_a_template_may_be_swapped() -> None:
    p = model().FromText(f"cells[0].cls : type/{__name__}/NoParams")
    assert (p.cells[0].cls, p.cells[0].dim) == (NoParams, 4)


# ---- What goes wrong in the imported module is shown as it is.


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
