"""Objects are built once; what a pipeline is built again for, and what is data.

Shapes: B examples, M micro-batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.execution.build_cache import BuildCache
from lingvo_pipe.pipeline.execution.micro_batches import MicroBatches
from lingvo_pipe.pipeline.execution.pipeline_runs import PipelineRuns
from lingvo_pipe.pipeline.loops.run_data import RunArguments, RunResults
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, one_f_one_b
from lingvo_pipe.pipeline.schedules.schedule import Schedule
from lingvo_pipe.pipeline.schedules.table import make_tables
from tests.pipeline.example_layers import loss_fn, pipeline, raw_values, state_batch
from tests.pipeline.prologue_models import make_batch, pipeline_of
from tests.support.cases import fast_cases


def test_a_key_is_built_once() -> None:
    cache: BuildCache[list] = BuildCache("It", "Take fewer.")
    first = cache.get(1, list)
    assert cache.get(2, lambda: ["other"]) == ["other"]
    assert cache.get(1, lambda: ["other"]) is first
    assert cache.built == [[], ["other"]]


def test_a_failed_build_is_repeated_at_the_next_use() -> None:
    cache: BuildCache[int] = BuildCache("It", "Take fewer.")
    with pytest.raises(ZeroDivisionError):
        cache.get(1, lambda: 1 // 0)
    assert cache.get(1, lambda: 3) == 3


def test_many_objects_cause_one_warning_with_a_hint(
    warnings: pytest.LogCaptureFixture,
) -> None:
    cache: BuildCache[int] = BuildCache("model/pipe", "Take fewer.")
    for key in [*range(16), *range(16)]:
        cache.get(key, int)
    assert not warnings.messages
    for key in range(20):
        cache.get(key, int)
    (message,) = warnings.messages
    assert re.search(r"\bmodel/pipe\b.*\b16\b", message)
    assert message.endswith("Take fewer.")


@pytest.mark.exhaustive
def test_a_pipeline_and_its_prologue_warn_of_batches_of_many_shapes(
    warnings: pytest.LogCaptureFixture,
) -> None:
    layer = pipeline_of("sums", num_stages=1, num_micro_batches=1)
    with ForwardContext(do_eval=True):
        for size in range(1, 18):
            layer.FProp(layer.theta, *make_batch(size)[0])
    logged = warnings.messages
    assert len(logged) == 2
    assert all(re.search(r"\bpipe\b.*\b16\b", text) for text in logged)
    assert sum("prologue" in text for text in logged) == 1


def _other_loss(logits: tf.Tensor, targets: NestedMap) -> NestedMap:
    return loss_fn(2.0 * logits, targets)


class Request(NamedTuple):
    """A run of two stages.

    Attributes:
        schedule: creates a schedule of two stages and M micro-batches.
        batch_size: B.
        num_micro_batches: M.
        dtype: dtype of the inputs.
        step: training step, or None if it is unknown.
        seed: seed of the batch.
        loss: the loss, or None for outputs.
        do_eval: whether it is an evaluation.
        input_gradients: whether it computes gradients of the inputs.
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
    """Runs of one pipeline."""

    def __init__(self) -> None:
        dense = FCLayer.Params().Set(input_dim=6, output_dim=6)
        cells = [dense, dense.Copy().Set(output_dim=3)]
        self.layer: PipeliningLayer = pipeline(cells, 2, 4)
        self.runs = PipelineRuns(self.layer.spec)

    def run(self, request: Request) -> RunResults:
        """Returns the results of a run."""
        r = request
        (x, _), targets = state_batch(r.batch_size, r.seed)
        cut = MicroBatches(r.batch_size, r.num_micro_batches)
        arguments = RunArguments(
            thetas=raw_values(self.layer).cells,
            step=None if r.step is None else tf.constant(r.step, tf.int64),
            first_examples=tf.constant(cut.first_examples),
            num_examples=tf.constant(cut.num_examples) if cut.is_ragged else None,
            batch_size=tf.constant(r.batch_size),
            inputs=cut.split((tf.cast(x, r.dtype),)),
            targets=cut.split(targets) if r.loss else None,
        )
        schedule = r.schedule(2, r.num_micro_batches)
        tables = make_tables(schedule)
        function = self.runs.function(
            tables, arguments, r.loss, r.do_eval, r.input_gradients
        )
        return function(arguments, [table.fed for table in tables])


SAME = {
    "other values": FIRST._replace(seed=1, step=4),
    "another M": FIRST._replace(batch_size=4, num_micro_batches=2),
    "an M above": FIRST._replace(batch_size=20, num_micro_batches=10),
    "another order": FIRST._replace(schedule=one_f_one_b),
}
OTHER = {
    "more rows": FIRST._replace(batch_size=12),
    "padding rows": FIRST._replace(batch_size=7),
    "another dtype": FIRST._replace(dtype=tf.float64),
    "no step": FIRST._replace(step=None),
    "another loss": FIRST._replace(loss=_other_loss),
    "evaluation": FIRST._replace(do_eval=True),
    "forward alone": FIRST._replace(schedule=_forward),
    "outputs": FIRST._replace(schedule=_forward, loss=None),
    "gradients of inputs": FIRST._replace(input_gradients=True),
}


def _arrays(result: RunResults) -> list[np.ndarray]:
    found = result.metrics, result.gradients, result.outputs, result.input_gradients
    return [x.numpy() for x in tf.nest.flatten(found) if x is not None]


@pytest.fixture(scope="module")
def runner() -> Runner:
    """Returns a runner that has run FIRST."""
    made = Runner()
    made.run(FIRST)
    return made


@pytest.mark.parametrize("name", fast_cases(SAME, ["another M"]))
def test_other_data_build_nothing(runner: Runner, name: str) -> None:
    """The results are the same as from a function built for them."""
    functions = runner.runs.functions
    got = runner.run(SAME[name])
    assert runner.runs.functions == functions
    alone = Runner().run(SAME[name])
    for a, b in zip(_arrays(got), _arrays(alone), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "name",
    fast_cases(OTHER, ["padding rows", "evaluation"]),
)
def test_another_structure_is_built_once(runner: Runner, name: str) -> None:
    num_functions = len(runner.runs.functions)
    for request in (OTHER[name], FIRST, OTHER[name]._replace(seed=1)):
        got = runner.run(request)
    assert len(runner.runs.functions) == num_functions + 1
    alone = Runner().run(OTHER[name]._replace(seed=1))
    for a, b in zip(_arrays(got), _arrays(alone), strict=True):
        np.testing.assert_array_equal(a, b)
