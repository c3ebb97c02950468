"""Dense layers: fully connected, activation only, and a Transformer's feed-forward.

Shapes: B examples, I input channels, O output channels. The feed-forward layer has D
channels and F hidden channels.
"""

from collections.abc import Callable
from typing import ClassVar

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.checks import check_channels, check_choice
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.slice_layers import HiddenSlice, JoinedSlice, SliceLayer
from lingvo_pipe.nested_map import NestedMap

_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "NONE": tf.identity,
    "RELU": tf.nn.relu,
    "RELU6": tf.nn.relu6,
    "LEAKY_RELU": tf.nn.leaky_relu,
    "ELU": tf.nn.elu,
    "SIGMOID": tf.nn.sigmoid,
    "TANH": tf.nn.tanh,
    "GELU": tf.nn.gelu,
    "SWISH": tf.nn.silu,
    "SOFTPLUS": tf.nn.softplus,
}


def GetFn(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the activation called `name`.

    Raises:
        ValueError: if no activation has this name.
    """
    check_choice(name, sorted(_ACTIVATIONS), "activation")
    return _ACTIVATIONS[name]


class ActivationLayer(BaseLayer):
    """An activation, applied to each element of inputs of any shape."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("activation", "RELU", "Name of the activation; see GetFn.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._activate = GetFn(self.params.activation)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        return self._activate(tf.cast(inputs, self.fprop_dtype))


class FCLayer(BaseLayer):
    """A fully connected layer: activation(x·w + b), `[..., I]` -> `[..., O]`."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("input_dim", 0, "I.")
        p.Define("output_dim", 0, "O.")
        p.Define("has_bias", True, "True to add b.")
        p.Define("activation", "NONE", "Name of the activation; see GetFn.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self._activate = GetFn(p.activation)
        self.CreateVariable("w", WeightParams([p.input_dim, p.output_dim]))
        if p.has_bias:
            bias = WeightParams([p.output_dim], WeightInit.Constant(0.0))
            self.CreateVariable("b", bias)

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices, which cut w along its larger dimension."""
        return _FCOutputSlice if p.output_dim >= p.input_dim else _FCInputSlice

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        check_channels(inputs, self.params.input_dim, self._path)
        outputs = tf.tensordot(tf.cast(inputs, self.fprop_dtype), theta.w, 1)
        if self.params.has_bias:
            outputs += theta.b
        return self._activate(outputs)


class FeedForwardLayer(CompositeLayer):
    """Feed-forward: activation(x·w1 + b1)·w2 + b2, with dropout before w2.

    Inputs and outputs are `[B, ..., D]`. See Vaswani et al., 1706.03762, section 3.3.
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("hidden_dim", 0, "F.")
        p.Define("activation", "RELU", "Name of the activation, such as GELU.")
        p.Define("has_bias", True, "True to add b1 and b2.")
        p.Define("keep_prob", 1.0, "Fraction of hidden channels that dropout keeps.")
        return p

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices. Each slice has some hidden channels.

        Slice j computes activation(x·w1_j + b1_j)·w2_j. The slices' outputs add up.
        """
        return _FeedForwardSlice

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        expand = FCLayer.Params().Set(input_dim=p.dim, output_dim=p.hidden_dim)
        contract = FCLayer.Params().Set(input_dim=p.hidden_dim, output_dim=p.dim)
        return {
            "expand": expand.Set(has_bias=p.has_bias, activation=p.activation),
            "dropout": DropoutLayer.Params().Set(keep_prob=p.keep_prob),
            "contract": contract.Set(has_bias=p.has_bias),
        }


class _FCOutputSlice(JoinedSlice, FCLayer):
    UNITS = "output_dim"
    AXES: ClassVar = {"w": 1, "b": 0}


class _FCInputSlice(SliceLayer, FCLayer):
    UNITS = "input_dim"
    AXES: ClassVar = {"w": 0}

    @classmethod
    def Trim(cls, p: InstantiableParams) -> InstantiableParams:
        return p.Set(has_bias=p.has_bias and cls.IsLast(p))

    def Own(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        inputs = tf.cast(self.OwnUnits(inputs), self.fprop_dtype)
        outputs = tf.tensordot(inputs, theta.w, 1)
        return outputs + theta.b if self.params.has_bias else outputs

    def Finish(self, result: tf.Tensor) -> tf.Tensor:
        return self._activate(result)


class _FeedForwardSlice(HiddenSlice, FeedForwardLayer):
    UNITS = "hidden_dim"
    AXES: ClassVar = {"expand/w": 1, "expand/b": 0, "contract/w": 0}
    PRODUCT = "contract"
