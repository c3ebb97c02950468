"""A layer's phases together are its forward pass and its gradient, to the bit.

Shapes: B = 2 rows, D = 3 channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.nests import present
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.tracing.phases import Compilation, Phases
from lingvo_pipe.pipeline.tracing.trace import CallContext, Result, Trace
from tests.support.cases import exhaustive

X = tf.TensorSpec([2, 3])
W = tf.TensorSpec([3, 3])
STEP = tf.TensorSpec([], tf.int64)
NOT_COMPILED = Compilation(by_xla=False, device=None)

Body = Callable[[list[tf.Tensor], list[tf.Tensor]], Any]


@tf.custom_gradient
def _straight_through(x: tf.Tensor) -> Any:
    return tf.sign(x), lambda gradient: gradient * tf.exp(-x)


@tf.custom_gradient
def _gradient_made_forward(x: tf.Tensor) -> Any:
    """Its gradient is a tensor of the forward pass, whatever comes back."""
    slope = tf.cos(x)
    return tf.sin(x), lambda gradient: slope


def _scaled_backward(w: list[tf.Tensor], x: list[tf.Tensor]) -> Any:
    """Its gradient needs an input, and weights, that the forward pass does not."""

    @tf.custom_gradient
    def passed_on(y: tf.Tensor) -> Any:
        return tf.identity(y), lambda gradient: gradient * x[1] @ w[1]

    return passed_on(x[0] @ w[0])


def _loop(w: list[tf.Tensor], x: list[tf.Tensor]) -> Any:
    return tf.while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w[0]))), [0, x[0]]
    )[1]


def _loop_of_unknown_length(w: list[tf.Tensor], x: list[tf.Tensor]) -> Any:
    """Its gradient needs lists, of which variants are stashed."""
    limit = tf.cast(tf.math.argmax(x[0][0]), tf.int32) + 1
    return tf.while_loop(
        lambda i, h: i < limit,
        lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w[0]))),
        [0, x[0]],
    )[1]


def _branch(w: list[tf.Tensor], x: list[tf.Tensor]) -> Any:
    return tf.cond(
        x[0][0, 0] > 0, lambda: tf.tanh(x[0] @ w[0]), lambda: tf.exp(x[1]) * w[1][0]
    )


def _checked(w: list[tf.Tensor], x: list[tf.Tensor]) -> Any:
    tf.debugging.assert_less(tf.reduce_max(x[0]), 100.0)
    return tf.tanh(x[0] @ w[0]) * x[1]


def _moments(w: list[tf.Tensor], x: list[tf.Tensor]) -> Any:
    """The gradients of inputs and of weights come out of one operation."""
    y, *_ = tf.compat.v1.nn.fused_batch_norm(
        tf.reshape(x[0], [2, 1, 1, 3]), w[0][0], w[1][0]
    )
    return tf.reshape(y, [2, 3]) * x[1]


def _narrow(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.bfloat16)


BODIES: dict[str, Body] = {
    "dense": lambda w, x: tf.tanh(x[0] @ w[0]) @ w[1] + x[1],
    "several outputs": lambda w, x: (tf.tanh(x[0]), x[0] @ w[0], tf.argmax(x[1], 1)),
    "inputs passed on": lambda w, x: (x[0], x[1] * x[0], x[0]),
    "weights of weights": lambda w, x: tf.tanh(x[0] @ (w[0] @ tf.exp(w[1]))) * x[1],
    "weight alone": lambda w, x: (tf.exp(w[0]), x[0] * x[1]),
    "gradient passed on": lambda w, x: (x[0] + x[1], tf.tanh(x[0]) @ (w[0] + w[1])),
    "weights passed on": lambda w, x: (w[0] + w[1], x[0] + x[1]),
    "fused moments": _moments,
    "loop": _loop,
    "loop of unknown length": _loop_of_unknown_length,
    "branch": _branch,
    "assertion": _checked,
    "custom gradient": lambda w, x: _straight_through(x[0] @ w[0]) * x[1],
    "gradient of another input": _scaled_backward,
    "gradient made forward": lambda w, x: _gradient_made_forward(x[0]) @ w[0],
    "a part stopped": lambda w, x: tf.stop_gradient(x[0] @ w[0]) * x[1],
    "cast weight": lambda w, x: _narrow(x[0]) @ _narrow(w[0]) * _narrow(w[1][0, 0]),
    "cast weight passed on": lambda w, x: (w[0], _narrow(x[0]) @ _narrow(w[0])),
    "lookup": lambda w, x: tf.gather(w[0], tf.argmax(x[0], 1)) * x[1],
}


def _trace(body: Body, trained: Sequence[bool] = (True, True)) -> Trace:
    def traced(theta: Any, call_context: CallContext, args: Any) -> Result:
        return Result(body(theta, args), NestedMap())

    return Trace(traced, [W, W], trained, CallContext(step=STEP), [X, X], True)


def _values(specs: Sequence[tf.TensorSpec], seed: int) -> list[tf.Tensor]:
    return [
        tf.random.stateless_normal(spec.shape, [seed, i], dtype=spec.dtype)
        for i, spec in enumerate(specs)
    ]


@pytest.mark.parametrize(("by_xla", "parts"), [(True, [1, 2]), (False, [1])])
def test_xla_compiles_both_halves_of_the_backward_pass_alone(
    by_xla: bool, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One function would round otherwise than the halves in other schedules."""
    made: list[int] = []
    monkeypatch.setattr(Phases, "_function", lambda *args: made.append(args[2]))
    Phases(_trace(BODIES["dense"]), (True, True), Compilation(by_xla, None)).backward()
    assert made == parts


class Run:
    """One run of a body's phases on random values."""

    def __init__(self, body: Body, wanted: Sequence[bool] = (True, True)):
        self.trace = _trace(body)
        self.phases = Phases(self.trace, wanted, NOT_COMPILED)
        self.weights, self.args = _values([W, W], 1), _values([X, X], 2)
        self.context = [tf.constant(3, tf.int64)]
        self.seeds = _values(self.phases.output_gradients, 3)
        args = [self.args[i] for i in self.phases.used]
        results = self._call(self.phases.forward(True), args)
        num_made = len(self.phases.made)
        self.made, self.residuals = results[:num_made], results[num_made:]

    def backward(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Gradients of inputs and of weights, at once."""
        return self._cut(
            self._call(self.phases.backward(), [*self.residuals, *self.seeds])
        )

    def backward_in_two(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Gradients of inputs, and of weights later."""
        inputs, stashed = self._cut(
            self._call(self.phases.input_backward(), [*self.residuals, *self.seeds])
        )
        return inputs, self._call(self.phases.weight_backward(), stashed)

    def _call(self, run: Callable, given: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        function = tf.function(lambda *flat: run(*flat), autograph=False)
        pairs = zip(self.weights, self.phases.cast_weights, strict=True)
        weights = [tf.cast(w, spec.dtype) for w, spec in pairs]
        return function(*weights, *self.context, *given)

    def _cut(self, results: list[Any]) -> tuple[list[Any], list[Any]]:
        num_inputs = len(self.phases.gives)
        return results[:num_inputs], results[num_inputs:]


def _by_tape(body: Body, run: Run) -> tuple[Any, list[Any], list[Any]]:
    """Outputs and gradients of the body as one function."""

    @tf.function(autograph=False)
    def whole(weights: Any, args: Any, seeds: list[tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([weights, args])
            outputs = body(weights, args)
            distinct = {x.ref(): x for x in tf.nest.flatten(outputs)}
            made = [x for x in distinct.values() if not any(x is a for a in args)]
            targets = [x for x in made if x.dtype.is_floating]
        zero = tf.UnconnectedGradients.NONE
        found = tape.gradient(targets, [args, weights], seeds, zero)
        return made, *tf.nest.map_structure(_dense, found)

    return whole(run.weights, run.args, run.seeds)


def _dense(gradient: Any) -> tf.Tensor | None:
    return None if gradient is None else tf.convert_to_tensor(gradient)


def _assert_same(got: Sequence[Any], want: Sequence[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", BODIES)
def test_phases_give_the_bytes_of_the_whole(name: str) -> None:
    run = Run(BODIES[name])
    made, by_input, by_weight = _by_tape(BODIES[name], run)
    by_weight = [
        tf.zeros_like(w) if g is None else g
        for w, g in zip(run.weights, by_weight, strict=True)
    ]
    _assert_same(run.made, made)
    for inputs, weights in (run.backward(), run.backward_in_two()):
        _assert_same(inputs, present(by_input))
        _assert_same(weights, by_weight)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("wanted", [(False, True), exhaustive((False, False))], ids=str)
def test_only_wanted_input_gradients_are_made(
    name: str, wanted: tuple[bool, bool]
) -> None:
    all_inputs, all_weights = Run(BODIES[name]).backward()
    run, full = Run(BODIES[name], wanted), Run(BODIES[name]).phases.gives
    assert run.phases.gives == [i for i in full if wanted[i]]
    for inputs, weights in (run.backward(), run.backward_in_two()):
        stashed = [g for i, g in zip(full, all_inputs, strict=True) if wanted[i]]
        _assert_same(inputs, stashed)
        _assert_same(weights, all_weights)


def test_weights_that_nothing_depends_on_are_trained_by_zeros() -> None:
    run = Run(lambda w, x: x[0] * 2)
    assert run.phases.has_gradient == [True, True]
    for _, weights in (run.backward(), run.backward_in_two()):
        _assert_same(weights, [tf.zeros([3, 3])] * 2)


def test_frozen_weights_have_no_gradient() -> None:
    trace = _trace(BODIES["dense"], trained=[False, True])
    assert Phases(trace, [True, True], NOT_COMPILED).has_gradient == [False, True]


def test_a_weight_is_cast_by_the_caller_if_nothing_else_uses_it() -> None:
    phases = Run(BODIES["cast weight"]).phases
    assert [w.dtype for w in phases.cast_weights] == [tf.bfloat16, tf.float32]
    assert phases.casts == [tf.TensorSpec(W.shape, tf.bfloat16)]
    assert Run(BODIES["cast weight passed on"]).phases.casts == []


def test_nothing_is_stashed_where_nothing_is_needed() -> None:
    assert Run(lambda w, x: x[0] + x[1]).phases.residuals == []


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("dense", 0.5),
        ("lookup", 0.0),
        ("gradient made forward", 1.0),
        ("loop", 0.0),
        ("loop and dense", 0.0),  # The loop's products are not known.
        ("checked dense", 0.0),
    ],
)
def test_residuals_do_not_need_all_products(name: str, share: float) -> None:
    bodies = BODIES | {
        "loop and dense": lambda w, x: _loop(w, x) @ w[1],
        "checked dense": lambda w, x: _checked(w, [x[0] @ w[0], x[1]]),
    }
    trace = _trace(bodies[name])
    assert Phases(trace, [True, True], NOT_COMPILED).output_share == share
    assert Phases(trace, [True, True], Compilation(True, "cpu:0")).output_share == 0


def test_what_must_run_runs_in_the_forward_pass_alone() -> None:
    """So it runs a second time only where the forward pass does."""
    phases = Run(BODIES["assertion"]).phases
    seeds = [*phases.residuals, *phases.output_gradients]

    def has_assertion(run: Callable, given: Sequence[tf.TensorSpec]) -> bool:
        function = tf.function(lambda *flat: run(*flat), autograph=False)
        specs = [*phases.cast_weights, *phases.call_context, *given]
        graph = function.get_concrete_function(*specs).graph
        # Within which TensorFlow puts the message.
        return "If" in [op.type for op in graph.get_operations()]

    assert has_assertion(phases.forward(True), [X, X])
    assert has_assertion(phases.forward(False), [X, X])
    assert not has_assertion(phases.backward(), seeds)
    assert not has_assertion(phases.input_backward(), seeds)
    assert not has_assertion(phases.weight_backward(), phases.weight_residuals)


def test_a_failing_assertion_fails_the_forward_pass() -> None:
    def failing(w: list[tf.Tensor], x: list[tf.Tensor]) -> Any:
        tf.debugging.assert_greater(tf.reduce_max(x[0]), 100.0, message="below_100")
        return x[0] * w[0][0]

    with pytest.raises(tf.errors.InvalidArgumentError, match="below_100"):
        Run(failing)


def test_lists_are_stashed_for_loops_of_unknown_length() -> None:
    stashed = Run(_loop_of_unknown_length).phases.residuals
    assert tf.variant in [spec.dtype for spec in stashed]
