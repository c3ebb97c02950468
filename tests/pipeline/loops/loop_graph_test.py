"""The messages between devices in the emitted graph.

Every cell is a stage here, on a device of its own.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.pipeline.example_layers import gradients, loss_fn, pipeline, state_batch
from tests.support.cases import exhaustive


class Message(NamedTuple):
    """A Send operation, by the numbers of its devices."""

    source: int
    target: int
    dtype: str


def _messages(layer: PipeliningLayer) -> collections.Counter[Message]:
    """Returns the Send operations of the last function; each has its Recv."""
    library = layer.functions[-1].graph.as_graph_def().library.function
    sent: list[Message] = []
    received: list[Message] = []
    for node in (node for function in library for node in function.node_def):
        if node.op == "Send":
            sent.append(_message(layer, node, "T"))
        if node.op == "Recv":
            received.append(_message(layer, node, "tensor_type"))
    assert sorted(sent) == sorted(received)
    return collections.Counter(sent)


def _message(layer: PipeliningLayer, node: Any, dtype: str) -> Message:
    source, target = (
        layer.devices.index(node.attr[end].s.decode())
        for end in ("send_device", "recv_device")
    )
    return Message(source, target, tf.as_dtype(node.attr[dtype].type).name)


def _forward_and_back(*pairs: tuple[int, int]) -> collections.Counter[Message]:
    """A float32 for each pair, and its gradient back."""
    return collections.Counter(
        Message(*ends, "float32") for a, b in pairs for ends in ((a, b), (b, a))
    )


class MakeLayer(BaseLayer):
    """A dense layer between two functions."""

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = super().Params()
        p.Define("before", None, "Of the inputs; its result is the dense layer's.")
        p.Define("after", None, "Of the dense layer's output and the inputs.")
        return p

    def __init__(self, params: InstantiableParams):
        super().__init__(params)
        self.CreateChild("dense", FCLayer.Params().Set(input_dim=6, output_dim=6))

    def FProp(self, theta: NestedMap, *args: Any) -> Any:
        y = self.dense.FProp(theta.dense, self.params.before(*args))
        return self.params.after(y, *args)


def _cells(*functions: tuple[Callable, Callable]) -> list[InstantiableParams]:
    return [MakeLayer.Params().Set(before=b, after=a) for b, a in functions]


def _first(x: Any, *more: Any) -> Any:
    return x


def _last_cell(before: Callable) -> tuple[Callable, Callable]:
    return before, lambda y, *args: y[:, :3]


CASES: dict[str, tuple[list, collections.Counter]] = {
    "a tensor that skips two stages": (
        [
            (_first, lambda y, x: (y, tf.tanh(y))),
            (_first, lambda y, x, skipped: (y, skipped)),
            (_first, lambda y, x, skipped: (y, skipped)),
            _last_cell(lambda x, skipped: x + skipped),
        ],
        _forward_and_back((0, 1), (1, 2), (2, 3), (0, 3)),
    ),
    "a tensor with two users": (
        [
            (_first, lambda y, x: (y, y)),
            (_first, lambda y, x, seen: (y, seen)),
            (_first, lambda y, x, seen: (y, seen)),
            _last_cell(lambda x, seen: x * seen),
        ],
        _forward_and_back((0, 1), (1, 2), (2, 3), (1, 3)),
    ),
    "the same tensor twice, and what no one uses": (
        [
            (_first, lambda y, x: (y, [y], y, tf.exp(y), None)),
            _last_cell(lambda a, b, c, *unused: a * b[0] + c),
        ],
        _forward_and_back((0, 1)),
    ),
    "no gradient of integers, or where it is stopped": (
        [
            (_first, lambda y, x: (y, tf.argmax(y, 1), tf.sign(y))),
            _last_cell(
                lambda x, i, s: x + tf.one_hot(i, 6) + tf.stop_gradient(tf.abs(s))
            ),
        ],
        _forward_and_back((0, 1))
        + collections.Counter([Message(0, 1, "int64"), Message(0, 1, "float32")]),
    ),
    "an input of the mini-batch used late": (
        [
            (lambda x, late: x, lambda y, x, late: (y, late)),
            (_first, lambda y, x, late: (y, late)),
            _last_cell(lambda x, late: x + tf.cast(late, tf.float32)[:, tf.newaxis]),
        ],
        _forward_and_back((0, 1), (1, 2)),
    ),
}


@pytest.mark.parametrize(
    ("case", "schedule"),
    [
        exhaustive(case, schedule)
        if schedule == "gpipe" or case == "a tensor with two users"
        else (case, schedule)
        for case, schedule in itertools.product(CASES, ("zero_bubble", "gpipe"))
    ],
)
def test_a_value_goes_straight_from_maker_to_user(case: str, schedule: str) -> None:
    """And its gradient back; targets and inputs go nowhere."""
    functions, want = CASES[case]
    (x, mask), targets = state_batch(4)
    inputs = [x, mask] if case.startswith("an input") else [x]
    cells = _cells(*functions)
    layer = pipeline(cells, len(cells), 2, schedule=schedule)
    gradients(layer, (inputs, targets))
    assert _messages(layer) == want


def test_an_evaluation_sends_nothing_back() -> None:
    cells = _cells(*[(_first, _first)] * 2, _last_cell(_first))
    layer, ([x, _], targets) = pipeline(cells, 3, 2), state_batch(4)
    with ForwardContext(do_eval=True):
        layer.ComputeMetrics(layer.theta, [x], targets, loss_fn)
    assert all(m.source < m.target for m in _messages(layer))


def test_stages_on_one_device_send_by_the_same_way() -> None:
    """Interleaved: stage 0 and 2 on device 0, 1 and 3 on device 1."""
    cells = _cells(*[(_first, _first)] * 3, _last_cell(_first))
    layer = pipeline(cells, 4, 2, schedule="interleaved", stages_per_device=2)
    (x, _), targets = state_batch(4)
    gradients(layer, ([x], targets))
    assert _messages(layer) == {
        Message(0, 1, "float32"): 3,
        Message(1, 0, "float32"): 3,
    }


@pytest.mark.parametrize("trained", [True, False])
def test_no_gradient_goes_where_nothing_is_trained(trained: bool) -> None:
    class PlainLayer(BaseLayer):
        """Without weights."""

        def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
            return tf.tanh(x)

    first = _cells((_first, _first))[0] if trained else PlainLayer.Params()
    cells = [first, PlainLayer.Params(), *_cells(_last_cell(_first))]
    layer, ([x, _], targets) = pipeline(cells, 3, 2), state_batch(4)
    gradients(layer, ([x], targets))
    back = [m for m in _messages(layer) if m.source > m.target]
    assert len(back) == (2 if trained else 0)
