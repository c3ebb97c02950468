"""Embeddings of tokens and positions. Shapes: B examples, V tokens, D channels."""

from typing import ClassVar

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import as_indices, wide_dtype
from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.attention import dim_size
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.weights import WeightInit, WeightParams
from lingvo_pipe.layers.slice_layers import SliceLayer
from lingvo_pipe.nested_map import NestedMap

_MAX_WAVELENGTH = 10_000.0  # in units of 2π


class TokenEmbeddingLayer(BaseLayer):
    """An embedding: a token's row of the table `w` `[V, D]`, multiplied by √D.

    The table itself has the small initial variance 1/D that a softmax's weight needs,
    so the two can be tied (Vaswani et al., 1706.03762, section 3.4).
    """

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("num_tokens", 0, "V.")
        p.Define("dim", 0, "D.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        p = self.params
        self.CreateVariable("w", table_weight(p.num_tokens, p.dim))

    def FProp(self, theta: NestedMap, ids: tf.Tensor) -> tf.Tensor:
        """Maps integers `[...]` in [0, V) to `[..., D]`.

        Raises:
            ValueError: if the ids are not integers.
        """
        ids = as_indices(ids, self._path)
        return tf.gather(theta.w, ids) * self.params.dim**0.5

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer]:
        """Returns the class of the slices. Each slice has the rows of some tokens."""
        return _TokenEmbeddingSlice


class _TokenEmbeddingSlice(SliceLayer, TokenEmbeddingLayer):
    UNITS = "num_tokens"
    AXES: ClassVar = {"w": 0}

    def Own(self, theta: NestedMap, ids: tf.Tensor) -> tf.Tensor:
        p = self.params
        ids = as_indices(ids, self._path) - p.begin
        # Ids outside of the vocabulary fail as in the whole layer.
        is_own = (ids >= 0) | (p.begin == 0)
        is_own &= (ids < p.num_tokens) | self.IsLast(p)
        rows = super().Own(theta, tf.where(is_own, ids, 0))
        return tf.where(is_own[..., tf.newaxis], rows, tf.zeros([], rows.dtype))


def table_weight(num_tokens: int, dim: int) -> Params:
    """Returns the WeightParams of a table `[V, D]`, or of a weight tied to a table."""
    return WeightParams([num_tokens, dim], WeightInit.Gaussian(dim**-0.5))


def sinusoidal_positions(
    positions: tf.Tensor, dim: int, dtype: tf.DType = tf.float32
) -> tf.Tensor:
    """Embeds positions by waves (Vaswani et al., 1706.03762, section 3.5).

    Maps positions `[B, ...]` to `[B, ..., D]`. Channel 2i is sin(position /
    10000^(2i/D)), and channel 2i+1 the cosine. Positions count from 0 in each sentence,
    also if an example is packed. Narrow dtypes are rounded at the end.

    Raises:
        ValueError: if D is odd.
    """
    if dim % 2:
        raise UserValueError(
            path="Channels of positions", expected="an even number", got=dim
        )
    wide = wide_dtype(dtype)
    rates = _MAX_WAVELENGTH ** (-2.0 * np.arange(dim // 2) / dim)
    angles = tf.cast(positions, wide)[..., tf.newaxis] * tf.constant(rates, wide)
    waves = tf.stack([tf.sin(angles), tf.cos(angles)], -1)
    sizes = (dim_size(positions, i) for i in range(1, len(positions.shape)))
    return tf.cast(tf.reshape(waves, [-1, *sizes, dim]), dtype)
