"""Values as people type them, such as in --model_params_override."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.path_hints import about_path
from tests.hyperparams.sample_params import MODULE, Color, Layer, params
from tests.support.errors import fails

READ = [
    # A bool.
    *[(True, text, False) for text in ("false", "False", "FALSE", "0")],
    *[(False, text, True) for text in ("true", "True", "TRUE", "1")],
    # An int in any spelling.
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
    (Color.RED, f"enum/{MODULE}/Color.BLUE", Color.BLUE),
    (dict, f"type/{MODULE}/Layer", Layer),
    (math.sin, "func/math/cos", math.cos),
    (math.sin, f"type/{MODULE}/Layer", Layer),
    # None takes the type that the text looks like.
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
    (None, f"enum/{MODULE}/Color.BLUE", Color.BLUE),
    # So does a value without text form.
    (object(), "12", 12),
    # Every param takes None.
    *[(x, "None", None) for x in (None, True, 1, 0.5, "a", [1])],
    *[(x, "None", None) for x in (Color.RED, dict, Params())],
]


@pytest.mark.parametrize(("default", "text", "value"), READ)
def test_a_value_is_read_as_the_type_it_replaces(
    default: Any, text: str, value: Any
) -> None:
    p = params(x=default).FromText(f"x : {text}")
    assert p.x == value
    assert type(p.x) is type(value)


def test_nan_is_read() -> None:
    assert math.isnan(params(x=0.5).FromText("x : nan").x)
    assert math.isnan(params(x=None).FromText("x : nan").x)


REFUSED = [
    (True, "maybe", "maybe"),
    (3, "1.5", "1.5"),
    (3, "inf", "inf"),
    (3, "1e999999999", "1e999999999"),
    (3, "", ""),
    (3, "3/1", "3/1"),
    (0.5, "fast", "fast"),
    ("a", "'b", "'b"),
    ("a", "'b' c", "'b' c"),
    ([1], "5", "5"),
    ({}, "[1]", "[1]"),
    ([1], "[1", "the end in '[1'"),
    ([1], "[1 'a']", "\"'a']\" in \"[1 'a']\""),
    ([1], "[1, , 2]", "', 2]' in '[1, , 2]'"),
    ([1], "[1] 2", "'2' in '[1] 2'"),
    ({}, "{1}", "'}' in '{1}'"),
    ({}, "{[1]: 2}", [1]),
    (Color.RED, "BLU", "BLU"),
    (Color.RED, "enum/math/pi", math.pi),
    (dict, "Layer", "Layer"),
    (dict, "type/math/cos", math.cos),
    (dict, "func/math/coss", "coss"),
    (dict, "type/no.such/A", "no.such"),
    (dict, "type/math.x/A", "math.x"),
    (dict, "type/Layer", "Layer"),
    (dict, "type/..x/A", "..x/A"),
    (None, "type/no_such/A", "no_such"),
    (None, "x (enum) : BLUE", "BLUE"),
    (None, "", "nothing"),
    (Params(), "x", "x"),
    (Params(), "params(a) b", "params(a) b"),
]
NEAR = {"BLU": "'BLUE'", "coss": "'cos'"}


@pytest.mark.parametrize(("default", "text", "got"), REFUSED)
def test_a_wrong_value_is_refused_with_its_path(
    default: Any, text: str, got: Any
) -> None:
    p = params(x=default)
    with fails(path="x", got=got) as info:
        p.FromText(text if text.startswith("x (") else f"x : {text}")
    for words in (NEAR.get(text.rpartition("/")[2], ""), about_path(p, "x")):
        assert words in info.value.hint
    assert p.x is default


def test_a_wrong_name_in_a_template_is_refused() -> None:
    with fails(got="A"):
        params(x=Params()).FromText("x : params(A)")
