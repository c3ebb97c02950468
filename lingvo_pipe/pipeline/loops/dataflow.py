r"""Dataflow between stages: the values and gradients that stages exchange.

    layer      l0 --a--> l1 --b--> l2 --c--> l3         c = l2(b); l3 uses a and c
    stage      0         1         2         3
    forward    a: 0 -> 1 -> 3      b: 1 -> 2      c: 2 -> 3
    backward   a: 3 -> 1 -> 0      b: 2 -> 1      c: 3 -> 2

A value is an output of a layer, or an input of the mini-batch. Each value has a number.
A layer that returns an input unchanged makes no new value. So a value goes straight
from the stage that makes it to the next stage that uses it, and from that stage to the
next one. The value's gradient goes the same way back: each stage adds its layers'
terms, last layer first. So the terms are added in the same order however layers are
grouped into stages.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class LayerValues(NamedTuple):
    """The numbers of the values that a layer, or the loss, takes and makes."""

    args: tuple[int, ...]  # The input values.
    # The values of `args` that the layer reads rather than only passes on.
    uses: frozenset[int]
    made: tuple[int, ...]  # The values that the layer makes.
    gives: frozenset[int]  # The values of `args` to which the layer gives gradients.
    wants: frozenset[int]  # The values of `made` whose gradients the layer uses.


class Hop(NamedTuple):
    """A transfer of a value, or its gradient, between stages, once per micro-batch."""

    value: int
    source: int
    target: int


class Dataflow:
    """The transfers of values and gradients between stages, as `Hop`s."""

    def __init__(
        self,
        stages: Sequence[Sequence[LayerValues]],
        outputs: Sequence[int] = (),
        seeded: Sequence[int] = (),
    ):
        """Finds the transfers. `stages` has the `LayerValues` of each stage's layers.

        The last stage returns the values `outputs`. The gradients of the values
        `seeded` enter the last stage from outside.
        """
        layers = [(k, layer) for k, stage in enumerate(stages) for layer in stage]
        last = len(stages) - 1
        self._owner = {value: k for k, layer in layers for value in layer.made}
        self._users = _stages([*((k, x.uses) for k, x in layers), (last, outputs)])
        self._givers = _stages([*((k, x.gives) for k, x in layers), (last, seeded)])
        self.forward = self._hops(self._users, descending=False)
        self.backward = self._hops(self._givers, descending=True)

    def inputs(self, stage: int) -> list[int]:
        """Returns the numbers of the mini-batch's inputs that a stage uses."""
        return sorted(
            value
            for value, users in self._users.items()
            if value not in self._owner and stage in users
        )

    def input_gradients(self, stage: int, inputs: Iterable[int]) -> list[int]:
        """Returns the items of `inputs` whose gradients a stage completes.

        Gradients flow from the last stage to the first. So the first stage that adds a
        term completes a gradient. A gradient without terms belongs to stage 0.
        """
        return [v for v in inputs if min(self._givers.get(v, {0})) == stage]

    def _hops(self, users: dict[int, set[int]], descending: bool) -> list[Hop]:
        hops = []
        for value in sorted(users):
            stops = set(users[value])
            if value in self._owner:
                stops.add(self._owner[value])
            elif not descending:
                continue  # Every stage has the inputs of the mini-batch.
            path = sorted(stops, reverse=descending)
            hops += [Hop(value, *pair) for pair in itertools.pairwise(path)]
        return hops


def needs_gradient(
    layers: Iterable[tuple[LayerValues, bool]], inputs: Iterable[int]
) -> set[int]:
    """Returns the values whose gradients must be computed.

    The gradients of trained weights and of `inputs` depend on these gradients. `layers`
    are pairs (layer, whether weights are trained), in the model's order.
    """
    needed = set(inputs)
    for layer, is_trained in layers:
        if is_trained or needed.intersection(layer.gives):
            needed.update(layer.wants)
    return needed


def recompute_inputs_by_layer(
    layers: Iterable[tuple[Sequence[int], Sequence[int], bool]],
) -> Iterator[list[int]]:
    """Yields the values from which a stage's recomputation starts, layer by layer.

    `layers` has (values used, values made, whether recomputed) for each layer of the
    stage. A recomputed layer yields the values that it uses and that no layer before it
    needs or recomputes. Another layer yields an empty list.
    """
    available: set[int] = set()
    for used, outputs, is_recomputed in layers:
        needed = [
            v for v in dict.fromkeys(used) if is_recomputed and v not in available
        ]
        available.update(needed)
        if is_recomputed:
            available.update(outputs)
        yield needed


def are_used_again(
    layers: Sequence[tuple[Sequence[int], Sequence[int], bool]],
) -> list[bool]:
    """Returns for each layer whether later recomputed layers use any of its outputs."""
    needed: set[int] = set()
    used_again = []
    for used, outputs, is_recomputed in reversed(layers):
        used_again.append(not needed.isdisjoint(outputs))
        if is_recomputed:
            needed.update(used)
    return used_again[::-1]


def _stages(uses: Iterable[tuple[int, Iterable[int]]]) -> dict[int, set[int]]:
    stages: dict[int, set[int]] = collections.defaultdict(set)
    for stage, values in uses:
        for value in values:
            stages[value].add(stage)
    return stages
