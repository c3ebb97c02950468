"""Slices: cells that together are one layer, for layers larger than a device.

    x -> [ ff>0 ] -- x, sum --> [ ff>1 ] -- x, sum --> [ ff>2 ] -> y

GPipe (1811.06965, section 2.1) proposes "splitting a single matrix-multiplication into
smaller ones and spreading them sequentially across multiple layers". Each slice has a
piece of the layer's units (hidden channels, heads, tokens of the vocabulary, ...) and
of its weights, and passes on the layer's inputs and the partial result.

Slice j of the cell `name` is called `name>j`. The layers below it have the same names
as in the whole layer, so a path without `>j` is a path in the whole layer. Initial
values and random numbers depend on the path without `>j`. Checkpoints hold whole
weights under this path.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.hyperparams import CopyFieldsTo, InstantiableParams
from lingvo_pipe.layers.core.random_streams import SLICE_MARK

if TYPE_CHECKING:
    from lingvo_pipe.layers.slice_layers import SliceLayer

# A number of slices, or numbers by the names of a composite layer's parts.
NumSlices = int | Mapping[str, Any]

# The methods that say how a layer is cut, and the methods that slices need not run.
_CUTS = {"SliceClass", "SliceableParts", "Slices", "NumUnits"}
_NOT_RUN = {"Params", "FPropMeta"}


class Piece(NamedTuple):
    """The place of a slice's part in a whole weight: a range along one axis."""

    axis: int
    begin: int
    whole: int  # size of the whole weight along the axis


def slice_name(name: str, number: int) -> str:
    """Returns the name of a slice of the cell `name`, such as `ff>1`."""
    return f"{name}{SLICE_MARK}{number}"


def whole_path(path: str) -> str:
    """Removes the numbers of slices, such as `>1`, from a path."""
    return re.sub(rf"{SLICE_MARK}\d+", "", path)


class Sliceable:
    """Base of layers that may be cut into slices. By default a layer cannot be cut."""

    _params: InstantiableParams
    _parent: Any

    @classmethod
    def SliceClass(cls, p: InstantiableParams) -> type[SliceLayer] | None:
        """Returns the class of the layer's slices. None if the layer has no units."""
        return None

    @classmethod
    def SliceableParts(cls, p: InstantiableParams) -> dict[str, InstantiableParams]:
        """Returns, by name, the params of the layer's parts that can be sliced."""
        return {}

    @classmethod
    def Slices(
        cls, p: InstantiableParams, num_slices: NumSlices
    ) -> list[InstantiableParams]:
        """Returns params of cells that, run in order, compute what the layer does.

        The cells have no names. Each takes the outputs of the previous cell as its
        inputs. The number of slices must be at most `num_units`.
        """
        slice_class = cls.SliceClass(p)
        if slice_class is None or not isinstance(num_slices, int):
            raise UserValueError(path=cls.__name__, expected="a layer that has slices")
        units = slice_class.UNITS
        whole_size = p.Get(units)
        slices = []
        for begin, end in itertools.pairwise(unit_edges(whole_size, num_slices)):
            piece = CopyFieldsTo(p, slice_class.Params())
            piece.Set(name="", begin=begin, whole=whole_size, **{units: end - begin})
            slices.append(slice_class.Trim(piece))
        return slices

    @classmethod
    def NumUnits(cls, p: InstantiableParams) -> int:
        """Returns the largest number of slices, or 1 if the layer can't be sliced."""
        if (slice_class := cls.SliceClass(p)) is not None:
            return p.Get(slice_class.UNITS)
        return min(map(num_units, cls.SliceableParts(p).values()), default=1)

    def PieceOf(self, path: str) -> Piece | None:
        """Returns the Piece of the weight at a path below this layer, None if whole."""
        if self._parent is None:
            return None
        return self._parent.PieceOf(f"{self._params.name}/{path}")


def num_units(p: InstantiableParams) -> int:
    """Returns the largest number of slices, or 1 if the layer can't be sliced."""
    return 1 if lost_text(p) else p.cls.NumUnits(p)


def sliceable_parts(p: InstantiableParams) -> dict[str, InstantiableParams]:
    """Returns, by name, the params of the layer's parts that can be sliced."""
    return {} if lost_text(p) else p.cls.SliceableParts(p)


def lost_text(p: InstantiableParams) -> str:
    """Returns a sentence about methods that the layer's slices would not run, or "".

    Slices run the code of the class that defines how the layer is cut. A subclass that
    overrides more than params has no slices until it also defines how it is cut.
    """
    lost = _lost_methods(p.cls)
    hint = f"Slices would not run {', '.join(lost)} of {p.cls.__name__}; define Slices."
    return hint if lost else ""


def _lost_methods(cls: type) -> list[str]:
    bases = cls.__mro__
    cutter = next((base for base in bases if _CUTS & vars(base).keys()), Sliceable)
    if cutter is Sliceable:
        return []
    return [
        name
        for base in bases[: bases.index(cutter)]
        for name, value in vars(base).items()
        if hasattr(cutter, name) and hasattr(value, "__get__")
        if name not in _NOT_RUN
        # Python itself adds attributes such as __dict__.
        if not name.startswith("__") or name == "__init__"
    ]


def unit_edges(num_units: int, num_slices: int) -> list[int]:
    """Returns the first unit of each slice, followed by the number of units."""
    return [num_units * j // num_slices for j in range(num_slices + 1)]


def part_slices(num_slices: NumSlices, name: str) -> NumSlices:
    """Returns the number of slices of the part `name`, or 1 if it is not cut."""
    return num_slices if isinstance(num_slices, int) else num_slices.get(name, 1)


def slices_of(p: InstantiableParams, num_slices: NumSlices) -> list[InstantiableParams]:
    """Returns params of a layer's slices, or of the whole layer if there is only 1.

    Raises:
        ValueError: if slices would not run all methods of the layer's class.
    """
    if num_slices == 1:
        return [p.Copy()]
    if hint := lost_text(p):
        expected = "a layer that has slices"
        raise UserValueError(path=p.cls.__name__, expected=expected, hint=hint)
    return p.cls.Slices(p, num_slices)


def pieces_by_path(layer: Any) -> dict[str, Piece]:
    """Returns, by path, the Piece of each variable that is a part of a weight."""
    pieces = {
        f"{descendant.path}/{name}": descendant.PieceOf(name)
        for descendant in layer.Descendants()
        for name in descendant.own_variables
    }
    return {path: piece for path, piece in pieces.items() if piece is not None}


def cut_whole(value: tf.Tensor, piece: Piece, size: int) -> tf.Tensor:
    """Cuts a piece out of a whole tensor. `size` is the piece's size along its axis."""
    axis = piece.axis % value.shape.rank
    begin = [piece.begin if i == axis else 0 for i in range(value.shape.rank)]
    sizes = [size if i == axis else -1 for i in range(value.shape.rank)]
    return tf.slice(value, begin, sizes)


def whole_shape(shape: Sequence[int], piece: Piece) -> list[int]:
    """Returns the shape of a whole tensor, given the shape of a piece of it."""
    sizes = list(shape)
    sizes[piece.axis] = piece.whole
    return sizes
