"""Builders: classes whose methods return the params of layers.

    class Builder(builder.Base):
        def Block(self, name, dim):
            return self._Graph(
                name, ['x'], ['z'],
                ('x->y', self._FC('fc', dim, dim)),
                ('x,y->z', self._Fn('add', tf.add, fn_out=lambda x, y: x)))

    b = Builder.Params().Instantiate()
    cells = [b.Block(f'block_{i}', 8) for i in range(4)]

Methods have Lingvo's names and arguments, and may call one another. A lambda has no
text form, so a model for the trainer needs layers, or functions that a module defines.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers import builder_layers
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import Conv2DLayer
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.graph_layer import GraphLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.sequential import FetchLayer, SequentialLayer


class Base:
    """Base class of builders. Subclasses add methods, and params for the methods."""

    # What errors say about params that only Lingvo's builders have.
    PARAM_HINTS: ClassVar[Mapping[str, str]] = {
        "deterministic_dropout": "Leave it out: all dropout is deterministic.",
    }

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Returns the params that every builder has."""
        p = InstantiableParams(cls)
        p.Define("fprop_dtype", None, "fprop_dtype of the layers that compute.")
        return p

    def __init__(self, params: InstantiableParams):
        self._params = params.Copy()

    @property
    def params(self) -> InstantiableParams:
        """The builder's params."""
        return self._params

    # ---- Layers of layers.

    def _Seq(self, name: str, *subs: InstantiableParams) -> InstantiableParams:
        """Returns the sequence of `subs`, which is the identity if there are none."""
        return SequentialLayer.Params().Set(name=name, sub=list(subs))

    def _Id(self, name: str) -> InstantiableParams:
        return self._Seq(name)

    def _Rep(
        self, name: str, repeat: int, *subs: InstantiableParams
    ) -> InstantiableParams:
        """Returns the sequence `subs` repeated. Each repetition has its own weights."""
        return self._Seq(
            name, *(self._Seq(f"iter_{i:03d}", *subs) for i in range(repeat))
        )

    def _Par(self, name: str, *subs: InstantiableParams) -> InstantiableParams:
        """Returns a layer that gives its inputs to all `subs`, and outputs a tuple."""
        return builder_layers.ParallelLayer.Params().Set(name=name, sub=list(subs))

    def _Graph(
        self,
        name: str,
        input_endpoints: Sequence[str],
        output_endpoints: Sequence[str],
        *signature_sub_param_list: tuple[str, InstantiableParams],
    ) -> InstantiableParams:
        """Returns a GraphLayer, which connects layers by the names of tensors.

        Each pair (signature, params) describes a layer. A signature such as `x,y->z`
        names the layer's inputs and outputs.
        """
        return GraphLayer.Params().Set(
            name=name,
            input_endpoints=list(input_endpoints),
            output_endpoints=list(output_endpoints),
            sub=list(signature_sub_param_list),
        )

    def _Save(self, name: str) -> InstantiableParams:
        """Returns an identity whose outputs `_AddFetches` finds by `name`."""
        return FetchLayer.Params().Set(name=name)

    def _AddFetches(
        self, name: str, body: InstantiableParams, fetches: Sequence[str]
    ) -> InstantiableParams:
        """Returns `body` with the outputs of the `_Save` layers in `fetches`, too."""
        return builder_layers.BranchLayer.Params().Set(
            name=name, body=body, fetches=list(fetches)
        )

    _Branch = _AddFetches

    # ---- Functions of the inputs.

    def _Arg(self, name: str, index: int) -> InstantiableParams:
        """Returns a layer that outputs only its input number `index`."""
        return builder_layers.ArgIndexLayer.Params().Set(name=name, idx=[index])

    def _Fn(
        self,
        name: str,
        fn: Callable,
        fn_out: Callable | None = None,
        fn_flops: Callable | None = None,
    ) -> InstantiableParams:
        """Returns a layer that applies `fn` to its inputs. See FnLayer's params."""
        functions = {"fn": fn, "fn_out": fn_out, "fn_flops": fn_flops}
        return builder_layers.FnLayer.Params().Set(name=name, **functions)

    # ---- Layers that compute. Each maps one tensor to one.

    def _BN(self, name: str, dims: int) -> InstantiableParams:
        return self._make(BatchNormLayer, name, dim=dims, decay=0.99)

    def _LN(self, name: str, dims: int) -> InstantiableParams:
        return self._make(LayerNormLayer, name, dim=dims)

    def _Dropout(self, name: str, keep_prob: float) -> InstantiableParams:
        return self._make(DropoutLayer, name, keep_prob=keep_prob)

    def _Linear(self, name: str, idims: int, odims: int) -> InstantiableParams:
        dims = {"input_dim": idims, "output_dim": odims}
        return self._make(FCLayer, name, has_bias=False, **dims)

    def _Bias(self, name: str, dims: int) -> InstantiableParams:
        return self._make(builder_layers.BiasLayer, name, dims=dims)

    def _Activation(self, name: str, fn: str | Callable = "RELU") -> InstantiableParams:
        """Returns an activation layer. `fn` is the activation's name, or a function."""
        if callable(fn):
            return self._Fn(name, fn)
        return self._make(ActivationLayer, name, activation=fn)

    def _FC(self, name: str, idims: int, odims: int) -> InstantiableParams:
        """Returns a layer that computes relu(x·w + b)."""
        return self._Seq(
            name,
            self._Linear("linear", idims, odims),
            self._Bias("bias", odims),
            self._Activation("act"),
        )

    def _MLP(self, name: str, dims: Sequence[int]) -> InstantiableParams:
        """Returns a sequence of `_FC` layers. Layer i maps dims[i] to dims[i + 1]."""
        pairs = enumerate(itertools.pairwise(dims))
        return self._Seq(name, *(self._FC(f"l{n:03d}", i, o) for n, (i, o) in pairs))

    def _Conv2D(
        self, name: str, filter_shape: Sequence[int], filter_stride: Sequence[int]
    ) -> InstantiableParams:
        window = {"filter_shape": filter_shape, "filter_stride": filter_stride}
        return self._make(Conv2DLayer, name, **window)

    def _make(self, layer: Any, name: str, **values: Any) -> InstantiableParams:
        fprop_dtype = self.params.fprop_dtype
        return layer.Params().Set(name=name, fprop_dtype=fprop_dtype, **values)
