r"""Random numbers that depend on the example, not on the machine.

A layer's numbers are a pure function of (seed, layer path, step, example):

    Philox( key     = hash(seed, layer path)
            counter = step << 64 | example * blocks + block )
                                   ^ 4 numbers per block, `blocks` per example

The caller, `ForwardContext.uniform`, makes the key. If a layer draws several times in a
forward pass, the draw's number is appended to the path. A micro-batch draws exactly its
rows of the whole mini-batch's numbers. So masks do not depend on the number of stages
or micro-batches, nor on recomputation. All quantities are integers, and none is ever
converted to a float.

The path hash is a polynomial, hash(a/b/c) = ((h·P + a)·P + b)·P + c modulo 2^64, so
that the hash of a prefix may be a tensor while the rest is known when tracing.
Identical layers can then share a traced function although their paths differ.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words

# Starts a slice's number in a name. The hash of a path leaves out both.
SLICE_MARK = ">"

_PRIME = 0x9E3779B97F4A7C15  # odd, so that multiplication is a bijection
_MASK = (1 << 64) - 1
_PHILOX = 1
_NUMBERS_PER_BLOCK = 4


def path_hash(path: str, prefix: int = 0) -> int:
    """Hashes `path` (names joined by `/`) below a path whose hash is `prefix`."""
    value = prefix
    for part in filter(None, path.split("/")):
        name = part.partition(SLICE_MARK)[0]
        digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
        value = (value * _PRIME + int.from_bytes(digest[:8], "little")) & _MASK
    return value


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value & _MASK, tf.uint64)


def extend_hash(prefix: tf.Tensor, path: str) -> tf.Tensor:
    """Returns `path_hash(path, prefix)` for a prefix that is a uint64 tensor."""
    power = pow(_PRIME, len([*filter(None, path.split("/"))]), 1 << 64)
    return prefix * _uint64(power) + _uint64(path_hash(path))


def seed_pair(seed: int, path: str) -> tuple[int, int]:
    """Returns the seed of a variable's initial value: two integers in [0, 2^63)."""
    return seed & (_MASK >> 1), path_hash(path) & (_MASK >> 1)


def uniform_rows(
    key: tf.Tensor,
    step: tf.Tensor,
    first_example: tf.Tensor,
    shape: Sequence[int],
    below: float | None = None,
) -> tf.Tensor:
    """Draws uniform [0, 1) float32 numbers of a static shape `[B, ...]`.

    If `below`, in (0, 1], is given, returns booleans: whether each number is below the
    float32 `below`. For this the bits are compared, which takes half the time.

    Row i depends on `key`, [] uint64, on `step`, [] int64, and on the example's
    position in the mini-batch, `first_example + i`, [] int64.
    """
    num_rows, row_shape = shape[0], list(shape[1:])
    row_size = math.prod(row_shape)
    blocks = -(-row_size // _NUMBERS_PER_BLOCK)
    start = _counter(first_example) * _uint64(blocks)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.constant([num_rows, blocks * _NUMBERS_PER_BLOCK]),
        key=tf.reshape(key, [1]),
        counter=tf.stack([start, _counter(step)]),
        alg=_PHILOX,
        dtype=tf.uint32,
    )
    numbers = _fractions(bits) if below is None else _are_below(bits, below)
    return tf.reshape(numbers[:, :row_size], [num_rows, *row_shape])


def _fractions(bits: tf.Tensor) -> tf.Tensor:
    """Converts 32 random bits to numbers in [0, 1): multiples of 2^-24.

    TensorFlow's own operations for this give other numbers under XLA.
    """
    high = tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32))
    return tf.cast(tf.cast(high, tf.int32), tf.float32) * 2.0**-24


def _are_below(bits: tf.Tensor, limit: float) -> tf.Tensor:
    """Returns `_fractions(bits) < limit`."""
    high = max(1, math.ceil(float(np.float32(limit)) * 2**24))
    return bits <= tf.constant(high * 2**8 - 1, tf.uint32)


def _counter(value: tf.Tensor) -> tf.Tensor:
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_integer:
        expected, got = "integers, such as int64", Words(value.dtype.name)
        raise UserValueError(path="Step and example", expected=expected, got=got)
    return tf.cast(value, tf.uint64)
