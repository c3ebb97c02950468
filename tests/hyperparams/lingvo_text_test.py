"""Texts that Lingvo writes are read; its form of each kind of value."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tensorflow as tf

from tests.hyperparams.sample_params import Color, Config, Point, params
from tests.support.errors import fails

LINGVO = [
    (True, "NoneType", None),
    (None, "NoneType", None),
    ("a", "NoneType", None),
    ([1], "[1, NoneType]", [1, None]),
    (Color.RED, "Color.BLUE", Color.BLUE),
    (math.sin, "type/math/cos", math.cos),
    (1j, "(2-3j)", 2 - 3j),
    (1j, "-0.5j", -0.5j),
    (None, "1+2j", 1 + 2j),
    (tf.float32, "int32", tf.int32),
    (Config(1), "{'dtype': 'NoneType', 'size': [4, 2]}", Config([4, 2])),
    (Config(1, tf.float32), "{'size': 2, 'dtype': 'int32'}", Config(2, tf.int32)),
    (Config("a"), "{'size': 'NoneType'}", Config(None)),
    (Config("a"), "{'size': 'None'}", Config("None")),
    (Config(dict), "{'size': 'type/math/cos'}", ValueError),
    (Config(math.sin), "{'size': 'type/math/cos'}", Config(math.cos)),
    (Config(1), "{'sise': 2}", ValueError),
    (Config(1), "[2]", ValueError),
    (Point(1, 2), "{'x': 3, 'y': 'b'}", Point(3, "b")),
    (Point(1, 2), "{'y': 5}", Point(1, 5)),
    (Point(1, 2), "{'z': 5}", ValueError),
    (1j, "complex", ValueError),
    (
        tf.io.FixedLenSequenceFeature([1], tf.float32),
        "{'allow_missing': True, 'default_value': 'NoneType', 'dtype': 'int64', "
        "'shape': [43]}",
        tf.io.FixedLenSequenceFeature([43], tf.int64, allow_missing=True),
    ),
]


@pytest.mark.parametrize(("default", "text", "value"), LINGVO)
def test_a_value_in_lingvo_s_form_or_ours(default: Any, text: str, value: Any) -> None:
    p = params(x=default)
    if value is ValueError:
        with fails(path="x"):
            p.FromText(f"x : {text}")
        assert p.x is default
        return
    p.FromText(f"x : {text}")
    read_again = params(x=default).FromText(p.ToText())
    for read in (p.x, read_again.x):
        assert read == value
        assert type(read) is type(value)


STRINGS = [
    "Split\nacross\nlines",
    "\nnext",
    "a : 1\n# no comment\n\nb : 'x",
    "back\\\nslash\\",
    "both '\n\"'",
    " : '\n",
    "\n",
]


def lingvo_text(value: str) -> str:
    """Quotes with the rarer quote; escapes that quote and backslashes, nothing else."""
    quote = "'" if value.count("'") <= value.count('"') else '"'
    escaped = value.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return f"{quote}{escaped}{quote}"


@pytest.mark.parametrize("blanks", ["", "  \t"])
@pytest.mark.parametrize("value", STRINGS)
def test_strings_span_lines(value: str, blanks: str) -> None:
    p = params(before="", text="", after="")
    p.FromText(f"before : b\ntext : {lingvo_text(value)}{blanks}\nafter : a\n")
    assert (p.before, p.text, p.after) == ("b", value, "a")


@pytest.mark.parametrize("value", STRINGS)
def test_strings_in_containers_span_lines(value: str) -> None:
    p = params(x={}, after=0)
    quoted = lingvo_text(value)
    p.FromText(f"x : {{'a': {quoted}, 'b': [{quoted}, 1]}}\nafter : 2")
    assert (p.x, p.after) == ({"a": value, "b": [value, 1]}, 2)


def test_an_open_quote_does_not_reach_the_next_entry() -> None:
    p = params(x="a", y="b")
    with fails(path="x"):
        p.FromText("x : 'open\ny : 'closed'")
    assert (p.x, p.y) == ("a", "b")


def test_a_record_needs_a_default_of_its_class() -> None:
    default: Any
    for default in (None, Point(1, 2), {}):
        with fails(path="x", got=Config(1)):
            params(x=default).Set(x=Config(1)).ToText()


def test_params_in_a_dataclass_have_no_text_form() -> None:
    """No path would lead to what they are set to."""
    p = params(x=Point(params(y=1), 2))
    assert p.Copy().FromText(p.ToText()) == p
    record = Config(params(y=1))
    with fails(path="x", got=record):
        params(x=record).ToText()


@pytest.mark.parametrize("text", ["'a\rb'", r"'\x'"])
def test_strings_that_are_not_python_s(text: str) -> None:
    with fails(path="x", got=text):
        params(x="a").FromText(f"x : {text}")
