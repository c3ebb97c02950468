"""Mixins that turn a layer's class into the class of its slices. See `core.slicing`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from lingvo_pipe.hyperparams import CopyFieldsTo, InstantiableParams
from lingvo_pipe.layers.core.checks import check_channels
from lingvo_pipe.layers.core.slicing import Piece, cut_whole, whole_shape
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap


class SliceLayer:
    """Mixin that turns a layer's class into the class of its slices.

    A slice computes the part of the layer that belongs to a range of its units. For
    inputs `x, *args` of the layer, a slice passes on `(x, partial, *args)`, where
    `partial` is the combined result of the slices so far. `Own` computes the slice's
    own result, and `Merge` combines the two.
    """

    UNITS: ClassVar[str]  # The param that counts the units.
    AXES: ClassVar[Mapping[str, int]]  # Axis of the units in each weight that has it.

    params: InstantiableParams
    _path: str

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()  # type: ignore[misc]
        p.Define("begin", 0, "Number of units in the slices before.")
        p.Define("whole", 0, "Number of units of all slices.")
        return p

    @classmethod
    def IsLast(cls, p: InstantiableParams) -> bool:
        """Returns whether these are the params of the last slice."""
        return p.begin + p.Get(cls.UNITS) == p.whole

    @classmethod
    def Trim(cls, p: InstantiableParams) -> InstantiableParams:
        """Changes a slice's params `p`, such as to drop a bias, and returns them."""
        return p

    @classmethod
    def UnitSize(cls, p: InstantiableParams, path: str) -> int:
        """Returns how many rows or columns of the weight at `path` each unit has."""
        return 1

    def PieceOf(self, path: str) -> Piece | None:
        p, axis = self.params, self.AXES.get(path)
        if axis is None:
            return None
        size = self.UnitSize(p, path)
        return Piece(axis, p.begin * size, p.whole * size)

    def OwnUnits(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the channels of `x` `[..., whole]` that belong to this slice."""
        p = self.params
        check_channels(x, p.whole, self._path)
        return x[..., p.begin : p.begin + p.Get(self.UNITS)]

    def Own(self, theta: NestedMap, *args: Any) -> Any:
        """Returns the result of this slice alone."""
        return super().FProp(theta, *args)  # type: ignore[misc]

    def Merge(self, partial: Any, own: Any) -> Any:
        """Combines the results of earlier slices and of this one: by default, adds."""
        return partial + own

    def Finish(self, result: Any) -> Any:
        """Returns the layer's outputs, given the combined result of all slices."""
        return result

    def FProp(self, theta: NestedMap, x: Any, *rest: Any) -> Any:
        p = self.params
        partial, args = (None, rest) if not p.begin else (rest[0], rest[1:])
        result = self.Own(theta, x, *args)
        if p.begin:
            result = self.Merge(partial, result)
        return self.Finish(result) if self.IsLast(p) else (x, result, *args)


def as_equal_slices(p: InstantiableParams) -> InstantiableParams:
    """Returns a copy of `p` in which all slices but the first and last have `begin` 1.

    Slices of equal size then have equal params, so they are traced only once. A slice
    costs the same wherever it begins.
    """

    def set_begin(_: str, value: Any) -> None:
        is_slice = isinstance(value, InstantiableParams) and issubclass(
            value.cls, SliceLayer
        )
        if is_slice and value.begin and not value.cls.IsLast(value):
            value.begin = 1

    p = p.Copy()
    p.Visit(lambda *_: None, exit_fn=set_begin)
    return p


class HiddenSlice(SliceLayer):
    """Mixin of slices of hidden units, which get dropout before the last product."""

    # The part whose bias only the last slice has, and the axis of units in dropout.
    PRODUCT: ClassVar[str]
    DROPOUT_AXIS: ClassVar[int] = -1

    @classmethod
    def Parts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        parts = super().Parts(p)  # type: ignore[misc]
        parts[cls.PRODUCT].has_bias = p.has_bias and cls.IsLast(p)
        dropout = CopyFieldsTo(parts["dropout"], _DropoutSlice.Params())
        dropout.piece = Piece(cls.DROPOUT_AXIS, p.begin, p.whole)
        return {**parts, "dropout": dropout}


class JoinedSlice(SliceLayer):
    """Mixin of slices that each compute a range of the layer's output channels."""

    def Merge(self, partial: Any, own: Any) -> Any:
        return tf.concat([partial, own], -1)


class _DropoutSlice(DropoutLayer):
    """Dropout of a slice's units, with the mask that the whole layer would draw."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("piece", None, "The Piece of the inputs of the whole layer's dropout.")
        return p

    def Kept(self, shape: tf.TensorShape) -> tf.Tensor:
        piece = self.params.piece
        kept = super().Kept(tf.TensorShape(whole_shape(shape, piece)))
        return cut_whole(kept, piece, shape[piece.axis])
