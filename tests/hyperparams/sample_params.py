"""Params that the tests share."""

from __future__ import annotations

from typing import Any

from lingvo_pipe.hyperparams import InstantiableParams, Params


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


def one_param(default: Any) -> Params:
    """Returns Params with a single param, x."""
    p = Params()
    p.Define("x", default, "")
    return p


def model_params() -> Params:
    """Returns a tree with every kind of nesting."""
    train = Params()
    train.Define("max_steps", 10, "Steps.")
    train.Define("lr", 0.5, "Learning rate.")
    p = Params()
    p.Define("name", "m", "Name.")
    p.Define("train", train, "Training.")
    p.Define("layer", Layer.Params(), "A layer.")
    p.Define("cells", [Layer.Params(), Layer.Params()], "Layers.")
    p.Define("by_name", {"left": Layer.Params(), 3: [1, 2]}, "Layers by name.")
    p.Define("pair", (Layer.Params(), 1), "A layer and a number.")
    return p
