"""A vector for each token.

Shapes: V tokens in the vocabulary, D channels.
"""

from __future__ import annotations

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.weight_init import WeightInit
from lingvo_pipe.layers.weight_params import WeightParams
from lingvo_pipe.nested_map import NestedMap


class TokenEmbeddingLayer(BaseLayer):
    """Rows of the table `w` `[V, D]`, which starts with variance 1/D, times √D.

    So the table can be tied to a softmax's weight, which wants the smaller numbers
    (Vaswani et al., 1706.03762, section 3.4).
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        """Params: sizes."""
        p = super().Params()
        p.Define("num_tokens", 0, "V.")
        p.Define("dim", 0, "D.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self.CreateVariable("w", table_weight(p.num_tokens, p.dim))

    def FProp(self, theta: NestedMap, ids: tf.Tensor) -> tf.Tensor:
        """`[...]` integers in [0, V) -> `[..., D]`.

        Raises:
            ValueError: if the ids are no integers.
        """
        ids = tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer:
            raise ValueError(
                "Tokens must be integers, for floats run out of them; "
                f"{self.path} got {ids.dtype.name} {ids.shape}. Keep them in int32."
            )
        return tf.gather(theta.w, ids) * self.params.dim**0.5

    @classmethod
    def FPropMeta(cls, p: InstantiableParams, *shapes: tuple) -> NestedMap:
        """Nothing is added up: rows are copied."""
        (shape,) = shapes
        return NestedMap(flops=0, out_shapes=((*shape, p.dim),))


def table_weight(num_tokens: int, dim: int) -> Params:
    """WeightParams of a table `[V, D]`, the same for all that may be tied."""
    return WeightParams([num_tokens, dim], WeightInit.Gaussian(dim**-0.5))
