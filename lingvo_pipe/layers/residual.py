"""A residual connection around a layer, with layer norm before or after it.

    norm first (pre-norm)    x + dropout(body(norm(x)))
    norm last (post-norm)    norm(x + dropout(body(x)))

Shapes: B examples, D channels.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.nests import as_args
from lingvo_pipe.hyperparams import CopyFieldsTo, InstantiableParams
from lingvo_pipe.layers.core.composite_layer import CompositeLayer
from lingvo_pipe.layers.core.slicing import NumSlices, part_slices, slices_of
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.nested_map import NestedMap


class ResidualLayer(CompositeLayer):
    """The sum of the inputs and of another layer's outputs."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("dim", 0, "D.")
        p.Define("body", None, "Params of a layer that keeps its first input's shape.")
        p.Define("norm_tpl", LayerNormLayer.Params(), "The norm's params, without dim.")
        p.Define("norm_first", True, "True for the norm before the body.")
        p.Define("keep_prob", 1.0, "Fraction of the body's outputs that dropout keeps.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        return {
            "norm": p.norm_tpl.Copy().Set(dim=p.dim),
            "body": p.body,
            "dropout": DropoutLayer.Params().Set(keep_prob=p.keep_prob),
        }

    @classmethod
    def SliceableParts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        return {"body": p.body}

    @classmethod
    def Slices(
        cls, p: InstantiableParams, num_slices: NumSlices
    ) -> list[InstantiableParams]:
        """Returns params of cells, one for each slice of the body.

        The norm is in the first or the last cell. The last cell computes the sum.
        """
        bodies = slices_of(p.body, part_slices(num_slices, "body"))
        tpl = CopyFieldsTo(p, _ResidualSlice.Params()).Set(name="")
        slices = [tpl.Copy().Set(body=body) for body in bodies]
        slices[0].is_first = slices[-1].is_last = True
        return slices

    def FProp(self, theta: NestedMap, inputs: tf.Tensor, *args: Any) -> tf.Tensor:
        """Maps `[B, ..., D]` and further inputs of the body to `[B, ..., D]`."""
        return self.Around(
            theta, inputs, lambda x: self.body.FProp(theta.body, x, *args)
        )

    def Around(
        self,
        theta: NestedMap,
        inputs: tf.Tensor,
        function: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        """Computes like FProp, with `function` in place of the body's FProp."""
        inputs = tf.cast(inputs, self.fprop_dtype)
        if self.params.norm_first:
            change = function(self.norm.FProp(theta.norm, inputs))
            return inputs + self.dropout.FProp(theta.dropout, change)
        total = inputs + self.dropout.FProp(theta.dropout, function(inputs))
        return self.norm.FProp(theta.norm, total)


class _ResidualSlice(ResidualLayer):
    """A cell with one slice of the body, which also passes on the layer's inputs."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("is_first", False, "True if no other slice is before.")
        p.Define("is_last", False, "True if no other slice follows.")
        return p

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        has_norm = p.is_first if p.norm_first else p.is_last
        present = {"norm": has_norm, "body": True, "dropout": p.is_last}
        return {k: part for k, part in super().Parts(p).items() if present[k]}

    def FProp(self, theta: NestedMap, inputs: tf.Tensor, *rest: Any) -> Any:
        p = self.params
        if p.is_first:
            inputs = tf.cast(inputs, self.fprop_dtype)
            x = self.norm.FProp(theta.norm, inputs) if p.norm_first else inputs
            rest = (x, *rest)
        outputs = as_args(self.body.FProp(theta.body, *rest))
        if not p.is_last:
            return (inputs, *outputs)
        total = inputs + self.dropout.FProp(theta.dropout, outputs[0])
        return total if p.norm_first else self.norm.FProp(theta.norm, total)
