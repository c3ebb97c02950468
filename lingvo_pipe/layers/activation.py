"""Activations by name, and the layer that applies one."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.forward_cost import elementwise_cost
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
        ValueError: if there is none of that name.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"An activation must be one of {sorted(_ACTIVATIONS)}; got {name!r}."
            f"{did_you_mean(str(name), _ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


class ActivationLayer(BaseLayer):
    """Applies an activation; any shape in, the same shape out."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: which activation."""
        p = super().Params()
        p.Define("activation", "RELU", "Its name; see GetFn.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self._activate = GetFn(self.params.activation)

    def FProp(self, theta: NestedMap, inputs: tf.Tensor) -> tf.Tensor:
        """Applies the activation to each element."""
        return self._activate(tf.cast(inputs, self.fprop_dtype))

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """One operation an element."""
        return elementwise_cost(shapes[0], int(p.activation != "NONE"))
