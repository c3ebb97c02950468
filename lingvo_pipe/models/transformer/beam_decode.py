"""Translations by beam search over a pipeline's layers, each on its stage's device.

The encoder runs once. Then one loop of the graph runs the decoder token by token for
all hypotheses of all examples; what a layer keeps of past tokens stays on its device
and follows the hypotheses. The search itself runs where the logits are. Stages work one
after the other: a token needs all of them, and the next token needs that one.

Shapes: B examples, S source tokens, W hypotheses in the beam, N returned, T tokens at
most, V tokens in the vocabulary.
"""

from __future__ import annotations

import math

import tensorflow as tf

from lingvo_pipe.hyperparams import Params
from lingvo_pipe.models.decoding.beam_search import beam_search
from lingvo_pipe.models.decoding.hypotheses import Hypotheses
from lingvo_pipe.models.transformer.incremental import (
    choose_rows,
    extend_step,
    init_states,
    run_source,
)
from lingvo_pipe.models.transformer.placed_cell import PlacedCell
from lingvo_pipe.nested_map import NestedMap


def decoding_params() -> Params:
    """How to translate; defaults are those of 1706.03762, section 6.1."""
    p = Params()
    p.Define("width", 4, "Hypotheses in the beam; 1: greedy search.")
    p.Define("num_hypotheses", 1, "How many are returned, at most width.")
    p.Define(
        "length_penalty",
        0.6,
        "GNMT's α, by which longer hypotheses are preferred; 0: not at all.",
    )
    p.Define(
        "max_length_ratio",
        1.0,
        "Longest translation: so many tokens for each of the source's ...",
    )
    p.Define("max_extra_length", 50, "... and so many more, the end token included.")
    return p


def beam_decode(
    p: Params,
    cells: list[PlacedCell],
    source: NestedMap,
    first_ids: tf.Tensor,
    eos_id: int,
) -> Hypotheses:
    """The best translations of each source.

    Args:
        p: as of `decoding_params`.
        cells: the layers of a translation model.
        source: a stream of static shape `[B, S]`, one sentence in each row.
        first_ids: `[B]` int32, what the decoder reads first, such as the token of the
            language to translate to.
        eos_id: the end token.

    Returns:
        N of each, the first tokens not included.

    Raises:
        ValueError: if a param is out of its range.
    """
    batch_size, num_source_tokens = source.ids.shape
    max_length = _max_length(p, num_source_tokens)
    memory = run_source(cells, source)
    states = init_states(cells, memory, batch_size * p.width, max_length)

    def step(
        ids: tf.Tensor, states: list[NestedMap], time_step: tf.Tensor
    ) -> tuple[tf.Tensor, list[NestedMap]]:
        logits, states = extend_step(cells, ids, states, time_step)
        return tf.nn.log_softmax(logits), states

    with tf.device(cells[-1].device):
        return beam_search(
            step,
            lambda states, rows: choose_rows(cells, states, rows),
            states,
            first_ids,
            _max_lengths(p, source),
            max_length=max_length,
            eos_id=eos_id,
            width=p.width,
            num_hypotheses=p.num_hypotheses,
            length_penalty=p.length_penalty,
            dtype=_logits_dtype(cells),
        )


def _max_length(p: Params, num_source_tokens: int) -> int:
    ratio, extra = p.max_length_ratio, p.max_extra_length
    if not 0 <= ratio < math.inf or not isinstance(extra, int) or extra < 1:
        raise ValueError(
            "max_length_ratio must be at least 0, and max_extra_length an integer of "
            f"at least 1, for the end token; got {ratio!r} and {extra!r}. Usual are "
            "1.0 and 50."
        )
    return math.floor(ratio * num_source_tokens) + extra


def _max_lengths(p: Params, source: NestedMap) -> tf.Tensor:
    """`[B]`; padding of the source does not count."""
    lengths = tf.math.count_nonzero(source.segment_ids, 1, dtype=tf.int32)
    of_source = tf.floor(p.max_length_ratio * tf.cast(lengths, tf.float64))
    return tf.cast(of_source, tf.int32) + p.max_extra_length


def _logits_dtype(cells: list[PlacedCell]) -> tf.DType:
    """See `LogitsLayer`."""
    is_wide = cells[-1].layer.fprop_dtype == tf.float64
    return tf.float64 if is_wide else tf.float32
