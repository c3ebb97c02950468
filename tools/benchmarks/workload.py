"""What is trained: Transformer layers, plain SGD, the mean of the squared outputs.

Both systems get the same weights and the same batch, and so must compute the same loss.
Imports neither of the two, as does all that both of them use.
"""

from __future__ import annotations

import dataclasses

import numpy as np

LEARNING_RATE = 1e-3
NORM_EPSILON = 1e-6
_WEIGHT_SCALE = 0.02
_BYTES_PER_NUMBER = 4


@dataclasses.dataclass(frozen=True)
class Workload:
    """The sizes of a model and its batch.

    Attributes:
        num_layers: L.
        model_dim: D.
        batch_size: examples in a mini-batch, B.
        sequence_length: tokens in an example, T.
        num_heads: of the attention.
    """

    num_layers: int
    model_dim: int
    batch_size: int
    sequence_length: int
    num_heads: int = 4

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's weights, by name; a vector is a norm's factor."""
        dim = self.model_dim
        return {
            "attention_norm": (dim,),
            "query_key_value": (dim, 3 * dim),
            "attention_output": (dim, dim),
            "feed_forward_norm": (dim,),
            "expand": (dim, 4 * dim),
            "contract": (4 * dim, dim),
        }

    def weights(self, layer: int) -> dict[str, np.ndarray]:
        """First values of a layer's weights, by name."""
        random = np.random.RandomState(layer)
        return {
            name: np.ones(shape, np.float32)
            if len(shape) == 1
            else (_WEIGHT_SCALE * random.standard_normal(shape)).astype(np.float32)
            for name, shape in self.weight_shapes().items()
        }

    def batch(self) -> np.ndarray:
        """The inputs, `[B, T, D]`."""
        shape = (self.batch_size, self.sequence_length, self.model_dim)
        random = np.random.RandomState(self.num_layers)
        return random.standard_normal(shape).astype(np.float32)

    @property
    def weight_bytes(self) -> int:
        """Of a layer's weights."""
        numbers = sum(int(np.prod(shape)) for shape in self.weight_shapes().values())
        return _BYTES_PER_NUMBER * numbers

    @property
    def input_bytes(self) -> int:
        """Of a layer's inputs for one example."""
        return _BYTES_PER_NUMBER * self.sequence_length * self.model_dim

    @property
    def activation_bytes(self) -> int:
        """Of all that a layer computes for one example.

        A token's are two norms, the three projections, the attention's weights and
        what it attends to, both residual sums (D each) and the hidden units (4·D).
        """
        attention_weights = self.num_heads * self.sequence_length
        numbers = self.sequence_length * (12 * self.model_dim + attention_weights)
        return _BYTES_PER_NUMBER * numbers
