"""Rows of tokens, several sentences in each.

    ids          a b c </s> d e </s> .
    segment_ids  1 1 1 1    2 2 2    0
    segment_pos  0 1 2 3    0 1 2    0

Shapes: n sentences of N tokens in all, in B rows of T tokens.
"""

import tensorflow as tf

from lingvo_pipe.input.text.vocabulary import Vocabulary
from lingvo_pipe.nested_map import NestedMap


def source_rows(
    tokens: tf.RaggedTensor,
    languages: tf.Tensor | None,
    row_sizes: tf.Tensor,
    length: int,
    vocabulary: Vocabulary,
) -> NestedMap:
    """Returns the source stream: `ids`, `segment_ids`, `segment_pos`, int32 `[B, T]`.

    See `streams` of the models. `tokens` are int32 `[n, (tokens)]`. `languages`, int32
    `[n]` or None, are tokens to put before the sentences. `row_sizes`, int32 `[B]`, are
    the numbers of sentences in the rows. `length` is T.
    """
    parts = [tokens, column(tokens, vocabulary.eos_id)]
    if languages is not None:
        parts.insert(0, tf.RaggedTensor.from_tensor(languages[:, tf.newaxis]))
    source = tf.concat(parts, 1)
    rows = _Rows(source.row_lengths(), row_sizes, length)
    return rows.stream(source, vocabulary.pad_id)


def target_rows(
    tokens: tf.RaggedTensor, row_sizes: tf.Tensor, length: int, vocabulary: Vocabulary
) -> NestedMap:
    """Returns the target stream, with `labels` one token ahead of the `ids`.

    Labels and ids are int32 `[B, T]`. `weights`, float32 `[B, T]`, are 1 for a token
    and 0 for padding. See `source_rows`.
    """
    read = tf.concat([column(tokens, vocabulary.bos_id), tokens], 1)
    labels = tf.concat([tokens, column(tokens, vocabulary.eos_id)], 1)
    rows = _Rows(read.row_lengths(), row_sizes, length)
    stream = rows.stream(read, vocabulary.pad_id)
    return NestedMap(
        stream,
        labels=rows.dense(labels.flat_values, vocabulary.pad_id),
        weights=tf.cast(stream.segment_ids > 0, tf.float32),
    )


def column(tokens: tf.RaggedTensor, token: int) -> tf.RaggedTensor:
    """Returns `token` for each of n sentences, to prepend or append: int32 [n, 1]."""
    filled = tf.fill([tokens.nrows(), 1], tf.constant(token, tf.int32))
    return tf.RaggedTensor.from_tensor(filled)


def token_positions(sentences: tf.RaggedTensor) -> tf.Tensor:
    """Returns each token's position in its sentence, from 0: int64 `[N]`."""
    begins = tf.repeat(sentences.row_starts(), sentences.row_lengths())
    return tf.range(tf.size(begins, tf.int64)) - begins


def cut_rows(
    values: tf.Tensor, starts: tf.Tensor, sizes: tf.Tensor, length: int, padding: int
) -> tf.Tensor:
    """Cuts values `[N]` into rows of `length` T, int32 `[B, T]`, and pads the rows.

    Row i has `sizes[i]` values, from number `starts[i]` on.
    """
    columns = tf.range(length, dtype=tf.int64)
    is_there = columns < sizes[:, tf.newaxis]
    positions = tf.where(is_there, starts[:, tf.newaxis] + columns, 0)
    return tf.where(is_there, tf.cast(tf.gather(values, positions), tf.int32), padding)


class _Rows:
    """The layout of sentences of `lengths` tokens, int64 [n], in rows."""

    def __init__(self, lengths: tf.Tensor, row_sizes: tf.Tensor, length: int) -> None:
        num_rows = row_sizes.shape[0] or tf.size(row_sizes)
        self._lengths, self._row_sizes, self._length = lengths, row_sizes, length
        self._row_of = tf.repeat(tf.range(num_rows), row_sizes)
        self._sizes = tf.math.unsorted_segment_sum(lengths, self._row_of, num_rows)
        self._starts = tf.cumsum(self._sizes, exclusive=True)
        # Without this check, longer rows would be truncated silently.
        tf.debugging.assert_less_equal(
            self._sizes, tf.constant(length, tf.int64), "The data have changed."
        )

    def stream(self, sentences: tf.RaggedTensor, pad_id: int) -> NestedMap:
        firsts = tf.cumsum(self._row_sizes, exclusive=True)
        numbers = tf.range(tf.size(self._row_of)) - tf.gather(firsts, self._row_of) + 1
        return NestedMap(
            ids=self.dense(sentences.flat_values, pad_id),
            segment_ids=self.dense(tf.repeat(numbers, self._lengths), 0),
            segment_pos=self.dense(token_positions(sentences), 0),
        )

    def dense(self, values: tf.Tensor, padding: int) -> tf.Tensor:
        """Arranges the tokens' values, `[N]`, in padded rows, int32 `[B, T]`."""
        return cut_rows(values, self._starts, self._sizes, self._length, padding)
