"""The phases of a cut graph compute the bytes of the whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.pipeline.tracing.cut import CutGraph

NUM_WEIGHTS, NUM_GIVEN, NUM_INPUTS, NUM_PHASES = 2, 1, 2, 3
SPEC = tf.TensorSpec([3, 3])
GRAPHS = range(12)


class RandomGraph:
    """A graph of operations on earlier results; targets may repeat, or be inputs."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        num = NUM_WEIGHTS + NUM_GIVEN + NUM_INPUTS
        self.function = tf.function(
            lambda *flat: self._record(draw, flat), autograph=False
        ).get_concrete_function(*[SPEC] * num)
        self.cut = CutGraph(
            self.function.graph,
            self.placeholders[: NUM_WEIGHTS + NUM_GIVEN],
            self.placeholders[:NUM_WEIGHTS],
            self.targets,
        )

    def _record(
        self, draw: random.Random, flat: Sequence[tf.Tensor]
    ) -> list[list[tf.Tensor]]:
        self.placeholders = list(flat)
        known = [*flat, tf.constant(0.5, shape=SPEC.shape)]
        for _ in range(25):
            a, b = draw.choices(known[-12:], k=2)
            operation = draw.choice([tf.add, tf.multiply, tf.matmul, tf.split])
            if operation is tf.split:
                known += tf.unstack(tf.stack([a, tf.tanh(b)]))
            else:
                known.append(operation(a, b) / 2)
        self.targets = [draw.choices(known, k=4) for _ in range(NUM_PHASES)]
        return [[tf.identity(x) for x in phase] for phase in self.targets]

    def run_phases(self, values: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Runs one phase after another, each in a function of its own."""
        num_given = NUM_WEIGHTS + NUM_GIVEN
        given, inputs = self.placeholders[:num_given], self.placeholders[num_given:]
        stashed = dict(zip((x.ref() for x in inputs), values[num_given:], strict=True))
        results = []
        for phase, targets in enumerate(self.targets):
            needed = self.cut.needed(phase)
            outputs = [*targets, *self._needed_later(phase)]
            run = tf.function(
                self.cut.function(phase, [*given, *needed], outputs), autograph=False
            )
            made = run(*values[:num_given], *(stashed[x.ref()] for x in needed))
            stashed.update(zip((x.ref() for x in outputs), made, strict=True))
            results.append(made[: len(targets)])
        return results

    def _needed_later(self, phase: int) -> list[tf.Tensor]:
        later = [x for p in range(phase + 1, NUM_PHASES) for x in self.cut.needed(p)]
        return [x for x in later if x.op in self.cut.operations(phase)]


@pytest.mark.parametrize("seed", GRAPHS)
def test_phases_compute_the_bytes_of_the_whole(seed: int) -> None:
    graph = RandomGraph(seed)
    values = [
        tf.random.stateless_normal(SPEC.shape, [seed, i])
        for i in range(len(graph.placeholders))
    ]
    got, want = graph.run_phases(values), graph.function(*values)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", GRAPHS)
def test_nothing_is_stashed_that_follows_from_weights_alone(seed: int) -> None:
    graph = RandomGraph(seed)
    others = {x.op for x in graph.placeholders[NUM_WEIGHTS:]}
    changing = set(others)
    for op in graph.function.graph.get_operations():
        if any(x.op in changing for x in op.inputs):
            changing.add(op)
    for phase in range(NUM_PHASES):
        assert {x.op for x in graph.cut.needed(phase)} <= changing


@pytest.mark.parametrize("seed", GRAPHS)
def test_no_operation_runs_in_two_phases(seed: int) -> None:
    """Except those on weights alone."""
    graph = RandomGraph(seed)
    for op in graph.function.graph.get_operations():
        phases = [p for p in range(NUM_PHASES) if op in graph.cut.operations(p)]
        assert len(phases) <= 1


def test_control_dependencies_do_not_cross_phases() -> None:
    """An assertion stays in its own phase."""

    def record(x: tf.Tensor) -> list[Any]:
        check = tf.debugging.Assert(tf.reduce_all(x > 0), [x])
        with tf.control_dependencies([check]):
            y = tf.tanh(x)
        found.extend([check, x, y])
        return [y, 2 * y]

    found: list[Any] = []
    function = tf.function(record, autograph=False).get_concrete_function(SPEC)
    check, x, y = found
    double = function.structured_outputs[1].op.inputs[0]
    cut = CutGraph(function.graph, [], [], [[check], [y, double]])
    run = tf.function(cut.function(1, [x], [y]), autograph=False)
    np.testing.assert_allclose(run(-tf.ones([3, 3]))[0], -np.tanh(np.ones([3, 3])))
    first = tf.function(cut.function(0, [x], []), autograph=False)
    assert cut.needed(0) == [x]
    assert any(
        op.type in ("Assert", "If")
        for op in first.get_concrete_function(SPEC).graph.get_operations()
    )
