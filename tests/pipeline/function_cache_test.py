"""What a pipeline is built anew for, and what is data.

Shapes: B examples, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.function_cache import FunctionCache
from lingvo_pipe.pipeline.micro_batches import MicroBatches
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.plan import Plan
from lingvo_pipe.pipeline.schedules.gpipe import gpipe
from lingvo_pipe.pipeline.schedules.one_f_one_b import one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from tests.pipeline.example_layers import loss_fn, pipeline, raw_values, state_batch


def _other_loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return loss_fn(2.0 * logits, targets)


class Request(NamedTuple):
    """A run of two stages.

    Attributes:
        schedule: makes one of two stages and M micro-batches.
        batch_size: B.
        num_micro_batches: M.
        dtype: of the inputs.
        step: of the training; None: not known.
        seed: of the batch.
        loss: the loss; None: the outputs are wanted.
        do_eval: whether it is an evaluation.
        input_gradients: whether those of the inputs are wanted.
    """

    schedule: Callable[[int, int], Schedule] = gpipe
    batch_size: int = 8
    num_micro_batches: int = 4
    dtype: Any = tf.float32
    step: int | None = 3
    seed: int = 0
    loss: Any = loss_fn
    do_eval: bool = False
    input_gradients: bool = False


FIRST = Request()


def _forward(num_stages: int, num_micro_batches: int) -> Schedule:
    return gpipe(num_stages, num_micro_batches).forward_part()


class Runner:
    """One pipeline's cache."""

    def __init__(self) -> None:
        dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
        cells = [dense, dense.Copy().Set(output_dim=3)]
        self.layer: PipeliningLayer = pipeline(cells, 2, 4)
        self.cache = FunctionCache(
            Plan(
                layers=self.layer.cells,
                ends=[1, 2],
                replicas=[self.layer.devices],
                recomputed=[True, True],
                jit_compile=[False, False],
                name="cached",
            )
        )

    def run(self, request: Request) -> NestedMap:
        """Results; the number of functions tells what was built."""
        r = request
        (x, _), targets = state_batch(r.batch_size, r.seed)
        cut = MicroBatches(r.batch_size, r.num_micro_batches)
        arguments = NestedMap(
            thetas=raw_values(self.layer).cells,
            step=None if r.step is None else tf.constant(r.step, tf.int64),
            first_examples=tf.constant(cut.first_examples),
            num_examples=tf.constant(cut.num_examples) if cut.is_ragged else None,
            batch_size=tf.constant(r.batch_size),
            inputs=cut.split((tf.cast(x, r.dtype),)),
            targets=cut.split(targets) if r.loss else None,
            output_gradients=[],
        )
        schedule = r.schedule(2, r.num_micro_batches)
        return self.cache.run(schedule, arguments, r.loss, r.do_eval, r.input_gradients)


SAME = {
    "other values": FIRST._replace(seed=1, step=4),
    "another M": FIRST._replace(batch_size=4, num_micro_batches=2),
    "an M above": FIRST._replace(batch_size=20, num_micro_batches=10),
    "another order": FIRST._replace(schedule=one_f_one_b),
}
OTHER = {
    "more rows": FIRST._replace(batch_size=12),
    "rows that fill up": FIRST._replace(batch_size=7),
    "another dtype": FIRST._replace(dtype=tf.float64),
    "no step": FIRST._replace(step=None),
    "another loss": FIRST._replace(loss=_other_loss),
    "evaluation": FIRST._replace(do_eval=True),
    "forward alone": FIRST._replace(schedule=_forward),
    "outputs": FIRST._replace(schedule=_forward, loss=None),
    "gradients of inputs": FIRST._replace(input_gradients=True),
}


def _arrays(result: NestedMap) -> list[np.ndarray]:
    kept = result.metrics, result.gradients, result.outputs, result.input_gradients
    return [x.numpy() for x in tf.nest.flatten(kept) if x is not None]


@pytest.mark.parametrize("name", SAME)
def test_what_is_data_builds_nothing(name: str) -> None:
    """And gives what a function built for it gives."""
    runner = Runner()
    runner.run(FIRST)
    got = runner.run(SAME[name])
    assert len(runner.cache.functions) == 1
    alone = Runner().run(SAME[name])
    for a, b in zip(_arrays(got), _arrays(alone), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", OTHER)
def test_what_is_structure_is_built_once(name: str) -> None:
    runner = Runner()
    for request in (FIRST, OTHER[name], FIRST, OTHER[name]._replace(seed=1)):
        got = runner.run(request)
    first, other = runner.cache.functions
    assert first is not other
    alone = Runner().run(OTHER[name]._replace(seed=1))
    for a, b in zip(_arrays(got), _arrays(alone), strict=True):
        np.testing.assert_array_equal(a, b)
