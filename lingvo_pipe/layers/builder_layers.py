"""Layers that combine other layers or apply a function. `builder` makes most of them.

Their inputs are one tensor or several. Their output is one tensor or a tuple.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import as_args, one_or_all
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_channels
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.graph_layer import GraphLayer as GraphLayer
from lingvo_pipe.layers.sequential import (
    SequentialLayer as SequentialLayer,
    saved_outputs,
)
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.tshape import Shape, as_shapes


class FnLayer(BaseLayer):
    """A layer that applies a function to its inputs."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("fn", None, "Function of the inputs; returns a tensor or a tuple.")
        p.Define(
            "fn_out",
            None,
            "Function of the inputs' shapes; returns the output's shape, or NestedMap "
            "of shapes, or a tuple: those that fn has. If None, they are traced.",
        )
        p.Define(
            "fn_flops",
            None,
            "Function of the inputs' shapes; returns flops. If None, they are traced.",
        )
        meta = "Instead of both, a function that returns what FPropMeta does."
        p.Define("fn_meta", None, meta)
        return p

    @property
    def only_traces_meta(self) -> bool:
        """True if no param gives shapes or flops, so FPropMeta traces the layer."""
        p = self.params
        return p.fn_meta is None and p.fn_out is None and p.fn_flops is None

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        return self.params.fn(*args)

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        if p.fn_meta is not None:
            for name in ("fn_out", "fn_flops"):
                if p.Get(name) is not None:
                    path, expected = f"{cls.__name__}.{name}", "None beside fn_meta"
                    raise UserValueError(path=path, expected=expected, got=p.Get(name))
            return p.fn_meta(*shapes)
        meta = super().FPropMeta(p, *shapes)
        if p.fn_out is not None:
            outputs = as_shapes(p.fn_out(*shapes))
            is_one = isinstance(outputs, (Shape, NestedMap))
            meta.out_shapes = (outputs,) if is_one else tuple(outputs)
        if p.fn_flops is not None:
            meta.flops = p.fn_flops(*shapes)
        return meta


class ParallelLayer(BaseLayer):
    """A layer that runs several layers on the same inputs, and merges the outputs."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("sub", [], "Params of the layers.")
        p.Define(
            "merge",
            None,
            "Function of the list of the layers' outputs, each a tuple; returns a "
            "tensor or a tuple. If None, the outputs of all layers in order.",
        )
        p.Define(
            "merge_meta",
            None,
            "Function of the list of the outputs' shapes, each a tuple; returns what "
            "FPropMeta does, of the merge. If None, it is traced.",
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChildren("sub", self.params.sub)

    @property
    def only_traces_meta(self) -> bool:
        """True if `merge_meta` is not given, so FPropMeta traces the layer."""
        return self.params.merge_meta is None

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        pairs = zip(self.sub, theta.sub, strict=True)
        outputs = [as_args(layer.FProp(part, *args)) for layer, part in pairs]
        return one_or_all(as_args((self.params.merge or _concatenated)(outputs)))

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: Any) -> NestedMap:
        if p.merge_meta is None:
            return super().FPropMeta(p, *shapes)
        metas = [sub.cls.FPropMeta(sub, *shapes) for sub in p.sub]
        meta = NestedMap(p.merge_meta([tuple(x.out_shapes) for x in metas]))
        meta.flops += sum(x.flops for x in metas)
        return meta


class ArgIndexLayer(BaseLayer):
    """A layer that returns some of its inputs, chosen by their indices."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("idx", [], "Indices of the inputs to return.")
        return p

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        return one_or_all([args[i] for i in self.params.idx])


class BiasLayer(BaseLayer):
    """A layer that adds a trained vector b: `[..., D]` -> `[..., D]`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dims", 0, "D.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        zeros = WeightInit.Constant(0.0)
        self.CreateVariable("b", WeightParams([self.params.dims], zeros))

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        check_channels(inputs, self.params.dims, self._path)
        return tf.cast(inputs, self.fprop_dtype) + theta.b


class BranchLayer(BaseLayer):
    """A layer that returns outputs of its body, then of FetchLayers inside the body."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("body", None, "Params of the layer.")
        p.Define(
            "fetches",
            [],
            "Paths of FetchLayers below the body. Only the last name of a path counts.",
        )
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("body", self.params.body)

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        with saved_outputs() as saved:
            outputs = as_args(self.body.FProp(theta.body, *args))
        return one_or_all(outputs + _fetched(self.params, saved, self._path))


def _fetched(
    p: InstantiableParams, saved: list[tuple[str, tuple]], path: str
) -> tuple[Any, ...]:
    fetched, names = [], [name for name, _ in saved]
    for fetch in p.fetches:
        name = fetch.split(".")[-1]
        if names.count(name) != 1:
            raise UserValueError(
                path=f"{path}.fetches",
                expected=f"the name of one FetchLayer in the body, which has {names}",
                got=fetch,
                names=names,
            )
        fetched.append(saved[names.index(name)][1])
    return _concatenated(fetched)


def _concatenated(outputs: Sequence[tuple]) -> tuple[Any, ...]:
    return tuple(x for branch in outputs for x in branch)
