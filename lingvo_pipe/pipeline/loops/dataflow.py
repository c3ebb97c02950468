r"""Which values travel between which stages. Pure.

    layer      l0 --a--> l1 --b--> l2 --c--> l3         c = l2(b); l3 uses a and c
    stage      0         1         2         3
    forward    a: 0 -> 1 -> 3      b: 1 -> 2      c: 2 -> 3
    backward   a: 3 -> 1 -> 0      b: 2 -> 1      c: 3 -> 2

A value is what a layer makes, or an input of the mini-batch. A layer that hands an
input on does not make a new value, so a value goes straight from the stage that made it
to the one that uses it, whatever lies between; from there to the next that uses it. Its
gradient goes the same way back: each stage adds its layers' parts, last layer first.
So parts are added in the same order however layers are grouped into stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Call(NamedTuple):
    """One layer, or the loss, at its place in the model; values are numbered.

    Attributes:
        args: the values that come in.
        uses: of those, the ones that are read rather than only handed on.
        made: the values that the layer makes.
        gives: of `args` those that get a gradient from the layer.
        wants: of `made` those whose gradients the layer uses.
    """

    args: tuple[int, ...]
    uses: frozenset[int]
    made: tuple[int, ...]
    gives: frozenset[int]
    wants: frozenset[int]


class Hop(NamedTuple):
    """A value that one stage sends to another for each micro-batch."""

    value: int
    source: int
    target: int


class Dataflow:
    """The hops of all values and gradients between stages."""

    def __init__(
        self,
        stages: Sequence[Sequence[Call]],
        outputs: Sequence[int] = (),
        seeded: Sequence[int] = (),
    ):
        """Finds the hops.

        Args:
            stages: the calls of each stage.
            outputs: the values that the last stage returns.
            seeded: those of them whose gradients it is given.
        """
        self._home: dict[int, int] = {}
        users: dict[int, set[int]] = {}
        givers: dict[int, set[int]] = {}
        for stage, calls in enumerate(stages):
            for call in calls:
                self._home.update(dict.fromkeys(call.made, stage))
                for value in call.uses:
                    users.setdefault(value, set()).add(stage)
                for value in call.gives:
                    givers.setdefault(value, set()).add(stage)
        last = len(stages) - 1
        for value in outputs:
            users.setdefault(value, set()).add(last)
        for value in seeded:
            givers.setdefault(value, set()).add(last)
        self._givers = givers
        self._users = users
        self.forward = self._hops(users, descending=False)
        self.backward = self._hops(givers, descending=True)

    def inputs(self, stage: int) -> list[int]:
        """The inputs of the mini-batch that a stage uses."""
        return sorted(
            value
            for value, users in self._users.items()
            if value not in self._home and stage in users
        )

    def input_gradients(self, stage: int, inputs: Iterable[int]) -> list[int]:
        """Those of the mini-batch's inputs whose gradients are whole in a stage.

        One that has none is said to be so in the first.
        """
        return [v for v in inputs if min(self._givers.get(v, {0})) == stage]

    def _hops(self, ends: dict[int, set[int]], descending: bool) -> list[Hop]:
        hops = []
        for value in sorted(ends):
            stops = set(ends[value])
            if value in self._home:
                stops.add(self._home[value])
            elif not descending:
                continue  # Inputs of the mini-batch are there already.
            path = sorted(stops, reverse=descending)
            hops += [Hop(value, *pair) for pair in itertools.pairwise(path)]
        return hops


def needs_gradient(
    calls: Iterable[tuple[Call, bool]], inputs: Iterable[int]
) -> set[int]:
    """The values whose gradient something trained depends on.

    Args:
        calls: with each whether it has trained weights, in the model's order.
        inputs: the mini-batch's inputs whose gradients are wanted.
    """
    needed = set(inputs)
    for call, is_trained in calls:
        if is_trained or needed.intersection(call.gives):
            needed.update(call.wants)
    return needed


def saved_by_call(
    calls: Iterable[tuple[Sequence[int], Sequence[int], bool]],
) -> Iterator[list[int]]:
    """The values from which a stage's recomputation starts, by the call that adds them.

    Args:
        calls: for each of the stage's what it uses and makes, and whether it is
            computed again.

    Yields:
        For each what it needs that none before it needed or made anew.
    """
    there: set[int] = set()
    for used, made, again in calls:
        needed = [v for v in dict.fromkeys(used) if again and v not in there]
        there.update(needed)
        if again:
            there.update(made)
        yield needed
