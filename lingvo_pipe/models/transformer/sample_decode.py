"""Sampling over a language model's layers, each on its stage's device.

    device 0 | a a   b b   a a   b b        a, b: groups of rows, a token at a time
    device 1 |     a a   b b   a a   b b

There are as many groups of rows as devices. Each group has a loop of its own in one
graph. While a group's token is on one device, other groups' tokens are on the others.

Shapes: B rows, P tokens of the longest prompt.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from lingvo_pipe.models.decoding.sampling import sample, uniform_draws
from lingvo_pipe.models.transformer import incremental
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.protocols import Samples, Sampling


def sample_decode(
    cells: Sequence[incremental.PlacedCell],
    prompts: NestedMap,
    sampling: Sampling,
    eos_id: int,
) -> Samples:
    """Returns prompts with what follows them.

    `prompts` has `ids` `[B, P]`, `lengths` [B] and `numbers` [B], all int32. A row's
    draws depend on its number.
    """
    num_groups = len({cell.device for cell in cells})
    num_rows = tf.shape(prompts.ids)[0]
    extra = tf.cast(tf.range(num_groups) < num_rows % num_groups, tf.int32)
    sizes = num_rows // num_groups + extra
    fields = [tf.split(x, sizes, num=num_groups) for x in prompts.Flatten()]
    groups = [prompts.Pack(group) for group in zip(*fields, strict=True)]
    samples = [_continued(cells, group, sampling, eos_id) for group in groups]
    with tf.device(cells[-1].device):
        return Samples(*(tf.concat(x, 0) for x in zip(*samples, strict=True)))


def _continued(
    cells: Sequence[incremental.PlacedCell],
    prompts: NestedMap,
    sampling: Sampling,
    eos_id: int,
) -> Samples:
    num_rows, longest = tf.unstack(tf.shape(prompts.ids))
    num_steps = longest + sampling.max_tokens - 1
    states = incremental.init_states(cells, NestedMap(), num_rows, num_steps)

    def step(ids: tf.Tensor, states: Any, t: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return incremental.extend_step(cells, ids, states, t)

    with tf.device(cells[-1].device):
        draws = uniform_draws(sampling, prompts.numbers)
        ids, lengths = prompts.ids, prompts.lengths
        return sample(step, states, ids, lengths, draws, sampling, eos_id)
