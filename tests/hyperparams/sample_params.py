"""Params, and values of every kind, that the tests share."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

from lingvo_pipe.hyperparams import InstantiableParams, Params

MODULE = __name__


class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


class Point(NamedTuple):
    x: Any
    y: Any = None


@dataclasses.dataclass
class Config:
    size: Any
    dtype: Any = None
    computed: int = dataclasses.field(default=3, init=False)


class Layer:
    def __init__(self, params: InstantiableParams, extra: int = 0) -> None:
        self.params = params
        self.extra = extra

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("name", "", "Name.")
        p.Define("dim", 4, "Width.")
        p.Define("sub_tpl", None, "Nested layer.")
        return p


class OtherLayer(Layer):
    pass


def params(**defaults: Any) -> Params:
    """Returns Params with these defaults."""
    p = Params()
    for name, default in defaults.items():
        p.Define(name, default, "")
    return p


def model_params() -> Params:
    """Returns a tree with every kind of nesting."""
    p = Params()
    p.Define("name", "m", "Name.")
    p.Define("train", params(max_steps=10, lr=0.5), "Training.")
    p.Define("layer", Layer.Params(), "A layer.")
    p.Define("cells", [Layer.Params(), Layer.Params()], "Layers.")
    p.Define("by_name", {"left": Layer.Params(), 3: [1, 2]}, "Layers by name.")
    p.Define("pair", (Layer.Params(), 1), "A layer and a number.")
    return p
