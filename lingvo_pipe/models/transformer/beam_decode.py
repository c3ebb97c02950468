"""Translation by beam search over a pipeline's layers, each on its stage's device.

The encoder runs once. Then one loop of the graph runs the decoder token by token for
all hypotheses. A layer's states of past tokens stay on its device. The search runs on
the device of the logits. Stages work one after the other.

Shapes: B examples, S source tokens, N hypotheses returned.
"""

import math

import tensorflow as tf

from lingvo_pipe.core.checks import check_counts
from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.nests import wide_dtype
from lingvo_pipe.hyperparams import Params
from lingvo_pipe.layers.attention import dim_size
from lingvo_pipe.models.decoding.beam_search import Hypotheses, beam_search
from lingvo_pipe.models.transformer import incremental
from lingvo_pipe.nested_map import NestedMap


def decoding_params() -> Params:
    """Returns params of decoding, with the defaults of 1706.03762, section 6.1."""
    p = Params()
    p.Define("width", 4, "Hypotheses in the beam; 1 is greedy search.")
    p.Define("num_hypotheses", 1, "Number of returned hypotheses, at most width.")
    meaning = "GNMT's α; larger values prefer longer hypotheses, 0 has no effect."
    p.Define("length_penalty", 0.6, meaning)
    p.Define(
        "max_length_ratio",
        1.0,
        "Maximal length of a translation: this times the source's number of tokens, "
        "plus max_extra_length.",
    )
    p.Define("max_extra_length", 50, "See max_length_ratio; includes the end token.")
    return p


def beam_decode(
    p: Params,
    cells: list[incremental.PlacedCell],
    source: NestedMap,
    first_ids: tf.Tensor,
    eos_id: int,
) -> Hypotheses:
    """Returns the N best translations of each source, without the first tokens.

    The source is a stream `[B, S]` with static S and one sentence in each row.
    `first_ids` are `[B]` int32.

    Raises:
        ValueError: if a param is out of its range.
    """
    check_counts(max_extra_length=p.max_extra_length)
    if not 0 <= p.max_length_ratio < math.inf:
        expected = "a finite number of at least 0"
        got = p.max_length_ratio
        raise UserValueError(path="max_length_ratio", expected=expected, got=got)
    num_source_tokens = source.ids.shape[1]
    max_length = math.floor(p.max_length_ratio * num_source_tokens) + p.max_extra_length
    memory = incremental.run_source(cells, source)
    batch_size = dim_size(source.ids, 0) * p.width
    states = incremental.init_states(cells, memory, batch_size, max_length)

    def step(ids: tf.Tensor, states: list, time_step: tf.Tensor) -> tuple:
        logits, states = incremental.extend_step(cells, ids, states, time_step)
        return tf.nn.log_softmax(logits), states

    with tf.device(cells[-1].device):
        return beam_search(
            step,
            lambda states, rows: incremental.choose_rows(cells, states, rows),
            states,
            first_ids,
            _max_lengths(p, source),
            max_length=max_length,
            eos_id=eos_id,
            width=p.width,
            num_hypotheses=p.num_hypotheses,
            length_penalty=p.length_penalty,
            dtype=wide_dtype(cells[-1].layer.fprop_dtype),
        )


def _max_lengths(p: Params, source: NestedMap) -> tf.Tensor:
    """Returns each translation's maximal length, `[B]`, from its source's length."""
    lengths = tf.math.count_nonzero(source.segment_ids, 1, dtype=tf.int32)
    of_source = tf.floor(p.max_length_ratio * tf.cast(lengths, tf.float64))
    return tf.cast(of_source, tf.int32) + p.max_extra_length
