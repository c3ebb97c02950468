"""Random numbers of a micro-batch: its rows of the whole mini-batch's numbers.

    seed s, mini-batch of 8      r0 r1 r2 r3 r4 r5 r6 r7       plain Keras
    micro-batch of rows 4, 5                 r4 r5             here, by the same seed

Within a cell a SeedGenerator's state is a `SeedState`. The seeds that Keras takes from
it are `RowSeed`s, for which TensorFlow's dispatch calls the functions below. They start
the counter of the Philox generator at the first row, so the numbers equal Keras's.

A draw belongs to the rows if its first dimension is the examples, so that its size
depends on their number. To find out, a layer is traced for two numbers of examples, and
its draws are noted in order. Any other operation on a `RowSeed` raises an error.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import UserTypeError, Words

UNKNOWN = -1
_PATH = "random numbers in a layer"
_PHILOX = 1  # tf.random.Algorithm.PHILOX

# Whether the next draw belongs to the rows, from its shape.
_belongs: contextvars.ContextVar[Callable[[tf.TensorShape], bool]]
_belongs = contextvars.ContextVar("belongs")


@contextlib.contextmanager
def _deciding(belongs: Callable[[tf.TensorShape], bool]) -> Iterator[None]:
    token = _belongs.set(belongs)
    try:
        yield
    finally:
        _belongs.reset(token)


def draws_of_rows() -> AbstractContextManager[None]:
    """Returns a context in which all draws belong to the rows."""
    return _deciding(lambda shape: True)


@contextlib.contextmanager
def noted_draws() -> Iterator[list[tf.TensorShape]]:
    """Yields a list to which each draw that is no scalar adds its shape."""
    notes: list[tf.TensorShape] = []

    def note(shape: tf.TensorShape) -> bool:
        notes.append(shape)
        return False

    with _deciding(note):
        yield notes


@contextlib.contextmanager
def known_draws(belong: Sequence[bool]) -> Iterator[None]:
    """Determines for each of the next draws, in order, if it belongs to the rows.

    Raises:
        TypeError: if there are not as many draws as items of `belong`.
    """
    number = 0

    def known(shape: tf.TensorShape) -> bool:
        nonlocal number
        number += 1
        return number <= len(belong) and belong[number - 1]

    with _deciding(known):
        yield
    if number != len(belong):
        raise UserTypeError(
            path=_PATH,
            expected=f"{len(belong)} draws, as for another number of examples",
            got=Words(f"{number} draws"),
            hint="Draw as often whatever the number of examples is. If a setting of "
            "the layer has changed, call compile again.",
        )


def is_unordered(state: Any) -> bool:
    """Returns whether a state is of SeedGenerator.next(ordered=False), in a graph.

    Such a state does not count the draws. An eager tensor does not show it.
    """
    return tf.is_symbolic_tensor(state) and state.op.type == "FloorMod"


class RowSeed(tf.experimental.ExtensionType):
    """A seed for the rows of a micro-batch."""

    pair: tf.Tensor  # `[2]` int32, the seed of the mini-batch's draw.
    first_row: tf.Tensor  # [] int64, the micro-batch's first row in the mini-batch.
    num_rows: int  # Rows of the micro-batch; UNKNOWN if not known before the run.

    @property
    def dtype(self) -> tf.DType:
        return tf.int32


class SeedState(tf.experimental.ExtensionType):
    """The state of a SeedGenerator within a cell."""

    state: tf.Tensor  # `[2]` int64, the state.
    first_row: tf.Tensor  # See `RowSeed`.
    num_rows: int

    @property
    def dtype(self) -> tf.DType:
        return self.state.dtype

    @property
    def shape(self) -> tf.TensorShape:
        return self.state.shape

    def __mul__(self, one: Any) -> RowSeed:
        """Returns a draw's seed. SeedGenerator.next copies its state by `* 1`."""
        pair = tf.cast(tf.math.floormod(self.state, tf.int32.max - 1), tf.int32)
        return RowSeed(pair, self.first_row, self.num_rows)


def _state_tensor(
    value: SeedState, dtype: Any = None, name: str | None = None, as_ref: bool = False
) -> tf.Tensor:
    return value.state if dtype is None else tf.cast(value.state, dtype)


def _refuse(*unused: Any, **options: Any) -> tf.Tensor:
    raise UserTypeError(
        path=_PATH,
        expected="keras.random's uniform, normal or categorical numbers, or integers",
        got=Words("a draw from another distribution"),
        hint="It would give each micro-batch the same numbers: make it from uniform "
        "numbers, or apply the layer to the dataset, before fit.",
    )


tf.register_tensor_conversion_function(SeedState, _state_tensor)
tf.register_tensor_conversion_function(RowSeed, _refuse)


@tf.experimental.dispatch_for_api(tf.random.stateless_uniform, {"seed": RowSeed})
def _uniform(
    shape: Any,
    seed: RowSeed,
    minval: Any = 0,
    maxval: Any = None,
    dtype: tf.DType = tf.float32,
    name: str | None = None,
    alg: str = "auto_select",
) -> tf.Tensor:
    dtype = tf.as_dtype(dtype)
    if dtype.is_integer:
        limits = {"minval": tf.cast(minval, dtype), "maxval": tf.cast(maxval, dtype)}
        draw = tf.raw_ops.StatelessRandomUniformIntV2
        return _rows_of(draw, shape, seed, dtype, **limits)
    draw = tf.raw_ops.StatelessRandomUniformV2
    low = tf.cast(minval, dtype)
    high = tf.cast(1 if maxval is None else maxval, dtype)
    drawn = _rows_of(draw, shape, seed, dtype, dtype=dtype)
    return tf.add(drawn * (high - low), low)


@tf.experimental.dispatch_for_api(tf.random.stateless_normal, {"seed": RowSeed})
def _normal(
    shape: Any,
    seed: RowSeed,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: tf.DType = tf.float32,
    name: str | None = None,
    alg: str = "auto_select",
) -> tf.Tensor:
    dtype = tf.as_dtype(dtype)
    draw = tf.raw_ops.StatelessRandomNormalV2
    drawn = _rows_of(draw, shape, seed, dtype, dtype=dtype)
    return tf.add(drawn * tf.cast(stddev, dtype), tf.cast(mean, dtype))


@tf.experimental.dispatch_for_api(tf.random.stateless_categorical, {"seed": RowSeed})
def _categorical(
    logits: tf.Tensor,
    num_samples: int,
    seed: RowSeed,
    dtype: tf.DType = tf.int64,
    name: str | None = None,
) -> tf.Tensor:
    draw = functools.partial(tf.random.stateless_categorical, dtype=dtype)
    first = seed.first_row
    if not _belongs.get()(tf.TensorShape([logits.shape[0], num_samples])):
        return draw(logits, num_samples, seed.pair)
    # What a row draws depends on the number of rows before it, not on their logits.
    padded = tf.pad(logits, [[first, 0], [0, 0]])
    return tf.ensure_shape(
        draw(padded, num_samples, seed.pair)[first:], [logits.shape[0], num_samples]
    )


def _rows_of(
    draw: Callable[..., tf.Tensor],
    shape: Any,
    seed: RowSeed,
    made: tf.DType,
    **options: Any,
) -> tf.Tensor:
    """Draws a random array. If it has rows, draws only the rows of the micro-batch."""
    shape = tf.convert_to_tensor(shape, tf.int32)
    static = tf.fill(shape, 0).shape  # The sizes that TensorFlow can infer.
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed.pair)
    options.update(key=key, alg=_PHILOX)
    if not static.rank or not _belongs.get()(static):
        return draw(shape=shape, counter=counter, **options)
    if static[0] is None and seed.num_rows != UNKNOWN:
        shape = tf.concat([[seed.num_rows], shape[1:]], 0)
    elif (UNKNOWN if static[0] is None else static[0]) != seed.num_rows:
        raise UserTypeError(
            path=_PATH,
            expected="a first dimension of the examples, or one that does not depend "
            "on their number",
            got=Words(f"shape {static.as_list()}"),
            hint="Draw numbers of shape [examples, ...], and reshape them.",
        )
    group = 2 if made.size == 8 else 4  # Numbers that Philox makes at each count.
    row_size = static[1:].num_elements()
    sizes = tf.cast(shape, tf.int64)
    numbers_per_row = tf.reduce_prod(sizes[1:]) if row_size is None else row_size
    first = seed.first_row * numbers_per_row
    counter += tf.stack([tf.cast(first // group, tf.uint64), tf.zeros([], tf.uint64)])
    if row_size is not None and row_size % group == 0:
        return draw(shape=shape, counter=counter, **options)
    total = tf.reduce_prod(sizes)
    numbers = draw(shape=total[None] + group - 1, counter=counter, **options)
    skipped = first % group
    return tf.reshape(numbers[skipped : skipped + total], shape)
