"""An override that can't be made is answered with what the param is, or those near it.

Overrides are made, with a fixed seed, of all params of some registered models.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import model_registry
from lingvo_pipe.core.error_text import user_message
from lingvo_pipe.core.paths import Item, Step, format_path, parse_path
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.hyperparams.fields import resolve
from lingvo_pipe.hyperparams.value_text import kind_of

MODELS = [
    "image.digits.AmoebaNetDigits",
    "image.imagenet.AmoebaNetB557M",
    "mt.cldr.TransformerTiny",
    "lm.giant.L13",
]
NUM_EACH = 6  # Of each kind and model.

# Kinds of params -> what is none of them.
WRONG_VALUES = {
    "bool": ["maybe", "2", "[true]"],
    "int": ["many", "1.5", "1,000", "[3]", ""],
    "float": ["fast", "1/2", "(0.1)", ""],
    "str": ["'open", '"a" b'],
    "list": ["3", "[1", "{a: 1}"],
    "tuple": ["3", "(1,", "{a: 1}"],
    "dict": ["3", "[1]", "{a}"],
    "dtype": ["float33", "int"],
    "params": ["3", "params/", "params/no_such_module/Layer"],
}
# Where there is no path: value.
WRONG_SYNTAX = ["{path}", "{path} = {value}", "{path} {value}", "{path}[ : {value}"]


class Param(NamedTuple):
    """A param of a model: where it is, and what it has."""

    path: str
    default: Any
    value: Any

    @property
    def kind(self) -> str:
        return "any" if self.value is None else kind_of(self.value)


class Override(NamedTuple):
    """An override that can't be made, and the param that was meant."""

    model: str
    text: str
    meant: Param


def _params(model: Any, steps: tuple[Step, ...] = ()) -> Iterator[Param]:
    """All params of a model that overrides of its texts can be about."""
    value = resolve(model, steps)
    if isinstance(value, Params):
        for name, field in value._fields.items():
            inner = (*steps, *parse_path(name))
            if name != "cls":
                yield Param(format_path(inner), field.default, field.value)
            yield from _params(model, inner)
    elif isinstance(value, (list, tuple)):
        for i in range(len(value)):
            yield from _params(model, (*steps, Item(i)))


def _misspelt(draw: random.Random, path: str) -> str:
    """A path with a letter of its last name doubled, left out or another."""
    before, dot, name = path.rpartition(".")
    at = draw.randrange(1, len(name))
    letters = [name[at] * 2, "", "z", "q"]
    return f"{before}{dot}{name[:at]}{draw.choice(letters)}{name[at + 1 :]}"


def _overrides(name: str) -> Iterator[Override]:
    """Overrides of a wrong type, an unknown name, or bad syntax."""
    draw = random.Random(name)
    every = list(_params(model_registry.GetParams(name, "Train")))
    paths = {param.path for param in every}
    typed = [param for param in every if param.kind in WRONG_VALUES]
    for param in draw.sample(typed, NUM_EACH):
        value = draw.choice(WRONG_VALUES[param.kind])
        yield Override(name, f"{param.path} : {value}", param)
    long = [param for param in every if len(param.path.rpartition(".")[2]) > 4]
    for param in draw.sample(long, NUM_EACH):
        wrong = _misspelt(draw, param.path)
        assert wrong not in paths
        yield Override(name, f"{wrong} : 1", param)
    for i, param in enumerate(draw.sample(every, NUM_EACH)):
        syntax = WRONG_SYNTAX[i % len(WRONG_SYNTAX)]
        yield Override(name, syntax.format(path=param.path, value=1), param)


OVERRIDES = [override for name in MODELS for override in _overrides(name)]


def _told(override: Override) -> str:
    model = model_registry.GetParams(override.model, "Train")
    before = model.Copy()
    with pytest.raises((AttributeError, ValueError)) as caught:
        model.FromText(override.text, separator=";")
    assert model == before
    line = user_message(caught.value)
    assert line is not None
    return line


def test_there_are_enough_of_them() -> None:
    assert len({override.text for override in OVERRIDES}) >= 50
    assert len({override.meant.kind for override in OVERRIDES}) >= 6


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda x: f"{x.model}-{x.text}")
def test_the_answer_has_path_type_and_default(override: Override) -> None:
    line, meant = _told(override), override.meant
    assert "\n" not in line
    typed = re.split(r" [:={1]", override.text)[0]
    assert typed in line
    about = re.escape(meant.path) + r" (?:has |\()type (\w+), default ([^ ,.)]+)"
    (kind, default) = re.search(about, line).groups()  # type: ignore[union-attr]
    assert kind == meant.kind
    if isinstance(meant.default, Params):
        assert default == "Params"
    elif len(str(meant.default)) < 20:
        assert default.strip("'") in str(meant.default)
