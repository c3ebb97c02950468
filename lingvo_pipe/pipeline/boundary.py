"""The tensors that cross from one stage to the next.

A stage hands on whatever its last layer returned: a tensor, several, or a NestedMap, of
any dtypes, with None for what is absent. Between devices they travel one by one.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.optional_nest import (
    map_present,
    pack_present,
    present,
    spec_of,
)


class Boundary:
    """The structure of what goes into a stage, or comes out, for one micro-batch."""

    def __init__(self, structure: Any):
        """Initialises the boundary.

        Args:
            structure: of TensorSpecs (or tensors) of static shape, and None.
        """
        self.structure = map_present(spec_of, structure)
        self.specs: list[tf.TensorSpec] = self.tensors(self.structure)
        self.is_differentiable = [
            spec.dtype.is_floating or spec.dtype.is_complex for spec in self.specs
        ]

    @property
    def gradient_specs(self) -> list[tf.TensorSpec]:
        """Specs of the gradients that come back: of floating and complex tensors."""
        return self.differentiable(self.specs)

    def tensors(self, structure: Any) -> list[Any]:
        """The tensors in a structure like this one; None left out."""
        return present(structure)

    def pack(self, tensors: list[Any]) -> Any:
        """The structure again, from its tensors."""
        return pack_present(self.structure, tensors)

    def differentiable(self, tensors: list[Any]) -> list[Any]:
        """Those of the tensors that have gradients."""
        return [
            x for x, yes in zip(tensors, self.is_differentiable, strict=True) if yes
        ]
