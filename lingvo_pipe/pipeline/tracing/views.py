"""Finds the memory buffers of tensors. A view has the buffer of another tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

VIEWS = (
    *("ExpandDims", "Identity", "IdentityN", "PreventGradient"),
    *("Reshape", "Squeeze", "StopGradient"),
)


class Buffers(NamedTuple):
    """The distinct buffers behind some tensors of a layer."""

    # One tensor for each buffer that no input or output of the layer has.
    own: list[tf.Tensor]
    args: list[int]  # Positions of the inputs whose buffers the tensors share.
    made: list[int]  # Positions of the outputs whose buffers the tensors share.
    indices: list[int]  # For each tensor, its buffer's index in own, args and made.


def origin(x: tf.Tensor) -> tf.Tensor:
    """Returns the tensor of which `x` is a view, or `x` itself."""
    while x.op.type in VIEWS:
        x = x.op.inputs[x.value_index]
    return x


def buffers_of(
    tensors: Sequence[tf.Tensor], args: Sequence[tf.Tensor], made: Sequence[tf.Tensor]
) -> Buffers:
    """Returns the buffers of tensors in a layer with inputs `args`, outputs `made`."""
    arg_of = {x.ref(): i for i, x in reversed([*enumerate(args)])}
    made_of = {origin(x).ref(): i for i, x in reversed([*enumerate(made)])}
    buffers = Buffers([], [], [], [])
    refs = [origin(x).ref() for x in tensors]
    for ref in dict.fromkeys(refs):
        if ref in arg_of:
            buffers.args.append(arg_of[ref])
        elif ref in made_of:
            buffers.made.append(made_of[ref])
        else:
            buffers.own.append(ref.deref())
    distinct = [
        *buffers.own,
        *(args[i] for i in buffers.args),
        *(origin(made[i]) for i in buffers.made),
    ]
    index = {x.ref(): i for i, x in enumerate(distinct)}
    buffers.indices.extend(index[ref] for ref in refs)
    return buffers
