"""FromText reads the texts of ToText: random trees of every kind of value."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.hyperparams import InstantiableParams, Params
from tests.hyperparams.sample_params import Color, Config, Point, params
from tests.support.errors import fails


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Layer:
    """Defaults of every kind, some of them changed after they are defined."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        train = params(lr=0.5, steps=3)
        defaults = {
            "none": None,
            "flag": True,
            "count": 3,
            "rate": 0.5,
            "text": "word",
            "sizes": [1, 2],
            "pair": (1, "a"),
            "table": {"a": 1},
            "color": Color.RED,
            "fn": math.sqrt,
            "kind": dict,
            "point": Point(1),
            "config": Config("a", {}),
            "train": train,
            "late_train": None,
            "late_text": None,
        }
        p = InstantiableParams(cls)
        for name, default in defaults.items():
            p.Define(name, default, "")
        return p.Set(late_train=train.Copy(), late_text="set later")

    class Inner:
        """A class without Params of its own."""

    def method(self) -> None: ...

    make = staticmethod(lambda: None)


def module_function() -> None: ...


WORDS = ["a", "None", "true", "1", "1e3", "nan", "float32", "dtype/x", "type/a/B", "#x"]
MARKS = ["'", '"', "\\", "\n", "\r", "\t", ";", ":", " ", "[", ")", "{", ",", "é", "\0"]
MARKS += ["\u2028", "\U0001f600", "\ud800", " : ", "(int)", "/"]


def random_string(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS + MARKS) for _ in range(rng.randrange(5)))


SCALARS: list[Callable[[random.Random], Any]] = [
    lambda rng: None,
    lambda rng: rng.random() < 0.5,
    lambda rng: rng.choice([0, -1, 10**30, rng.randrange(-1000, 1000)]),
    lambda rng: rng.choice([0.0, -0.0, 1e-3, 1e300, 5e-324, rng.gauss(0, 1)]),
    lambda rng: rng.choice([math.inf, -math.inf, math.nan]),
    lambda rng: rng.choice(
        [np.float32(0.1), np.int64(7), np.bool_(True), np.str_("a")]
    ),
    lambda rng: rng.choice([1j, -2.5 + 0j, complex(-0.0, math.inf), 1e-9 - 1e300j]),
    random_string,
    lambda rng: rng.choice([*Color, *Level]),
    lambda rng: rng.choice([Layer, Layer.Inner, dict, Params, np.float32]),
    lambda rng: rng.choice(
        [module_function, len, math.sin, Layer.method, Layer.Params]
    ),
]


def random_value(rng: random.Random, depth: int) -> Any:
    """Returns any value; Params, lists and so on only if `depth` is positive."""
    kind = rng.randrange(3 * len(SCALARS) // 2) if depth else 0
    if kind < len(SCALARS):
        return rng.choice(SCALARS)(rng)
    items = [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind % 5 == 0:
        return items
    if kind % 5 == 1:
        return tuple(items)
    if kind % 5 == 2:
        return {rng.choice([random_string(rng), i]): x for i, x in enumerate(items)}
    if kind % 5 == 3:
        return random_layer(rng, depth - 1)
    p = rng.choice(
        [Params, InstantiableParams, lambda: InstantiableParams(Layer.Inner)]
    )()
    for i, item in enumerate(items):
        p.Define(f"p{i}", item, "")
    return p


def random_layer(rng: random.Random, depth: int) -> InstantiableParams:
    """Returns Layer's Params with a few set to any value."""
    p = Layer.Params()
    for name in rng.sample([k for k in p.GetKeys() if k != "cls"], rng.randrange(5)):
        p.Set(**{name: random_value(rng, depth)})
    if "point" in p and rng.random() < 0.5:
        p.point = Point(rng.choice(SCALARS)(rng), [rng.choice(SCALARS)(rng)])
        p.config = Config((random_string(rng),), random_string(rng))
    if rng.random() < 0.2:
        p.Delete(rng.choice(["count", "train"]))
    if rng.random() < 0.2:
        p.Define("more", None, "")
        p.more = random_value(rng, depth)
    return p


def same_types(a: Any, b: Any) -> bool:
    """Returns whether equal values have equal types, NumPy's as plain numbers."""
    if isinstance(a, Params):
        return type(a) is type(b) and all(
            same_types(value, b.Get(name)) for name, value in a.IterParams()
        )
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and all(map(same_types, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and all(same_types(v, b[k]) for k, v in a.items())
    if isinstance(a, np.generic):
        a = a.item()
    # An int in the place of a float is that number.
    return type(a) is type(b) or (type(a) is int and type(b) is float)


@pytest.mark.parametrize("separator", ["\n", ";", "; ", " ;\n", "\n\n"])
@pytest.mark.parametrize("seed", range(60))
def test_any_values_are_read_as_written(seed: int, separator: str) -> None:
    rng = random.Random(seed)
    p = random_layer(rng, 3)
    fresh = Layer.Params()
    for name in set(fresh.GetKeys()) - set(p.GetKeys()):
        fresh.Delete(name)
    for name in set(p.GetKeys()) - set(fresh.GetKeys()):
        fresh.Define(name, None, "")
    text = p.ToText(separator=separator)
    for reader in (fresh, p.Copy()):
        assert reader.FromText(text, separator=separator) is reader
        assert reader == p
        assert same_types(p, reader)


@pytest.mark.parametrize("seed", range(60))
def test_with_types_the_reader_may_hold_anything(seed: int) -> None:
    rng = random.Random(seed)
    written, reader = Params(), Params()
    for i in range(8):
        written.Define(f"p{i}", rng.choice(SCALARS)(rng), "")
        reader.Define(f"p{i}", rng.choice(SCALARS)(rng), "")
    assert reader.FromTextWithTypes(written.ToTextWithTypes()) == written


@pytest.mark.parametrize("seed", range(60))
def test_plain_params_are_read_into_their_defaults(seed: int) -> None:
    def fresh() -> Params:
        rng, p = random.Random(seed), Params()
        for i in range(8):
            p.Define(f"p{i}", random_value(rng, 2), "")
        return p

    rng, p = random.Random(-seed), fresh()
    for name in rng.sample(p.GetKeys(), 4):
        p.Set(**{name: random_value(rng, 3)})
    assert fresh().FromText(p.ToText()) == p


@pytest.mark.parametrize("number", [0, 3, -(2**53), 2**53 + 1, 10**30])
def test_an_int_in_the_place_of_a_float_keeps_its_value(number: int) -> None:
    p = Layer.Params().Set(rate=number)
    assert Layer.Params().FromText(p.ToText()).rate == number


def test_a_frozen_tree_has_the_same_text() -> None:
    p = random_layer(random.Random(1), 3)
    text = p.ToText()
    p.Freeze()
    assert p.ToText() == text


def test_types_by_path() -> None:
    p = params(a=1, b=[Layer.Inner])
    assert p.ToText(include_types=True) == (
        f"a : 1\nb : [type/{__name__}/Layer.Inner]\n",
        {"a": "int", "b": "list"},
    )
    assert p.ToTextWithTypes().endswith("\n\na : int\nb : list\n")
    assert Params().FromTextWithTypes(Params().ToTextWithTypes()) == Params()


def test_the_look_of_a_text() -> None:
    p = Layer.Params().Set(
        none=[Layer.Params(), None], rate=1, text=5, late_train=None, sizes=[0.5]
    )
    names = "point config color fn kind pair table flag late_text"
    for layer in (p, p.none[0]):
        layer.Delete(*names.split())
    assert p.ToText() == (
        f"cls : type/{__name__}/Layer\n"
        "count : 3\n"
        "late_train : None\n"
        f"none : [params/{__name__}/Layer"
        "(none, count, rate, text, sizes, train, late_train), None]\n"
        "none[0].count : 3\n"
        "none[0].late_train.lr : 0.5\n"
        "none[0].late_train.steps : 3\n"
        "none[0].none : None\n"
        "none[0].rate : 0.5\n"
        "none[0].sizes : [1, 2]\n"
        "none[0].text : 'word'\n"
        "none[0].train.lr : 0.5\n"
        "none[0].train.steps : 3\n"
        "rate : 1\n"
        "sizes : [0.5]\n"
        "text (int) : 5\n"
        "train.lr : 0.5\n"
        "train.steps : 3\n"
    )


class OtherParams(Params):
    """A class of Params without text form."""


def local_class() -> type:
    class Local:
        pass

    return Local


LOCAL = local_class()
SET, POINT = {1, 2}, Point(1, 2)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (SET, SET),
        (POINT, POINT),
        (Layer.make, Layer.make),
        (LOCAL, LOCAL),
        (InstantiableParams(LOCAL), LOCAL),
        (OtherParams(), OtherParams),
        ({(1, 2): Params()}, (1, 2)),
        ({True: Params()}, True),
    ],
)
def test_a_value_without_text_form_is_refused_by_its_path(value: Any, got: Any) -> None:
    for x in (value, [value]):
        with fails(path="a[0].x", got=got):
            params(a=[params(x=x)]).ToText()


@pytest.mark.parametrize("separator", ["", " ", ",", "; ;"])
def test_a_separator_that_may_be_in_an_entry_is_refused(separator: str) -> None:
    with fails(path="separator", got=separator):
        Params().ToText(separator=separator)
    with fails(path="separator", got=separator):
        Params().FromText("", separator=separator)
