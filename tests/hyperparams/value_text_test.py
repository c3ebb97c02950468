"""Values as people type them, such as in --model_params_override."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest

from lingvo_pipe.hyperparams import InstantiableParams, Params
from tests.hyperparams.sample_params import one_param


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Layer:
    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("dim", 4, "")
        return p


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
    (Color.RED, f"enum/{__name__}/Color.BLUE", Color.BLUE),
    (dict, f"type/{__name__}/Layer", Layer),
    (math.sin, "func/math/cos", math.cos),
    (math.sin, f"type/{__name__}/Layer", Layer),
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
    (None, f"enum/{__name__}/Color.BLUE", Color.BLUE),
    # So does a value without text form.
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
