"""Many tensors as one that travels through loops and calls.

A stage of many layers has thousands of weights, totals and residuals. Passed one by
one, each would stand in every function between the step and the layer that uses it. So
they travel packed, as one optional value that holds them all, and are unpacked where
they are used. A pack may hold packs: those of a stage hold one for each of its layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

# A pack: one tensor, or none if there is nothing to hold.
Handles = list[tf.Tensor]


class Packing:
    """Packs tensors of fixed specs."""

    def __init__(self, specs: Sequence[tf.TensorSpec]):
        self._specs = list(specs)

    @property
    def handles(self) -> list[tf.TensorSpec]:
        """Specs of a pack."""
        return [tf.TensorSpec([], tf.variant)] if self._specs else []

    def pack(self, tensors: Sequence[tf.Tensor]) -> Handles:
        """A pack of the tensors."""
        if not self._specs:
            return []
        return [tf.raw_ops.OptionalFromValue(components=list(tensors))]

    def unpack(self, handles: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors again."""
        if not self._specs:
            return []
        (pack,) = handles
        return tf.raw_ops.OptionalGetValue(
            optional=pack,
            output_types=[spec.dtype for spec in self._specs],
            output_shapes=[spec.shape for spec in self._specs],
        )


class PackOfPacks:
    """Packs the packs of several packings."""

    def __init__(self, sizes: Sequence[int]):
        """Initialises the packing.

        Args:
            sizes: how many handles each pack has.
        """
        self._sizes = list(sizes)
        self._all = Packing([tf.TensorSpec([], tf.variant)] * sum(sizes))

    @property
    def handles(self) -> list[tf.TensorSpec]:
        """Specs of a pack."""
        return self._all.handles

    def pack(self, packs: Sequence[Handles]) -> Handles:
        """One pack of them all."""
        return self._all.pack([handle for pack in packs for handle in pack])

    def unpack(self, handles: Handles) -> list[Handles]:
        """The packs again."""
        remaining = iter(self._all.unpack(handles))
        return [[next(remaining) for _ in range(size)] for size in self._sizes]
