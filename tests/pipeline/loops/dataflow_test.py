"""The values and gradients between stages suffice to run the calls in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from lingvo_pipe.pipeline.loops.dataflow import (
    Dataflow,
    Hop,
    LayerValues,
    are_used_again,
    needs_gradient,
    recompute_inputs_by_layer,
)

NUM_INPUTS = 3
MODELS = range(60)


def _model(seed: int) -> tuple[list[LayerValues], list[int]]:
    """Returns random calls, some of which pass values on, and outputs."""
    draw = random.Random(seed)
    calls: list[LayerValues] = []
    known, number = list(range(NUM_INPUTS)), NUM_INPUTS
    for _ in range(draw.randint(1, 8)):
        args = tuple(draw.choices(known, k=draw.randint(1, 4)))
        uses = frozenset(v for v in args if draw.random() < 0.7)
        gives = frozenset(v for v in uses if draw.random() < 0.7)
        made = tuple(range(number, number + draw.randint(0, 2)))
        number += len(made)
        wants = frozenset(v for v in made if draw.random() < 0.8)
        calls.append(LayerValues(args, uses, made, gives, wants))
        # The mini-batch's inputs, new values, and some that are passed on.
        known += [*made, *(v for v in args if draw.random() < 0.3)]
    outputs = sorted(set(draw.choices(known[NUM_INPUTS:] or known, k=2)))
    return calls, outputs


def _splits(calls: Sequence[LayerValues]) -> list[list[list[LayerValues]]]:
    """All ways to cut the calls into stages."""
    inner = range(1, len(calls))
    return [
        [list(calls[a:b]) for a, b in itertools.pairwise([0, *boundaries, len(calls)])]
        for num in range(len(calls))
        for boundaries in itertools.combinations(inner, num)
    ]


@pytest.mark.parametrize("seed", MODELS)
def test_every_stage_has_what_it_uses_when_it_runs(seed: int) -> None:
    calls, outputs = _model(seed)
    for stages in _splits(calls):
        flow = Dataflow(stages, outputs)
        has = [set(flow.inputs(k)) for k in range(len(stages))]
        for k, own in enumerate(stages):
            has[k] |= {hop.value for hop in flow.forward if hop.target == k}
            for call in own:
                assert call.uses <= has[k]
                has[k].update(call.made)
            assert all(hop.value in has[k] for hop in flow.forward if hop.source == k)
        assert {v for v in outputs if v >= NUM_INPUTS} <= has[-1]


@pytest.mark.parametrize("seed", MODELS)
def test_nothing_travels_that_is_not_used_or_twice(seed: int) -> None:
    calls, outputs = _model(seed)
    for stages in _splits(calls):
        flow = Dataflow(stages, outputs)
        assert all(hop.source < hop.target for hop in flow.forward)
        arrivals = [(hop.value, hop.target) for hop in flow.forward]
        assert len(set(arrivals)) == len(arrivals)
        for value, target in arrivals:
            assert value >= NUM_INPUTS, "inputs of the mini-batch are there"
            used = any(value in call.uses for call in stages[target])
            assert used or (target == len(stages) - 1 and value in outputs)
            assert not any(value in call.made for call in stages[target])


@pytest.mark.parametrize("seed", MODELS)
def test_terms_of_a_gradient_are_added_as_in_one_stage(seed: int) -> None:
    """Last call first, after the output's own gradient; all reach the value's maker."""
    calls, outputs = _model(seed)
    for stages in _splits(calls):
        flow = Dataflow(stages, outputs, seeded=outputs)
        whole = _added_up(stages, flow, outputs)
        assert whole == _added_up([calls], Dataflow([calls], outputs, outputs), outputs)


def _added_up(
    stages: list[list[LayerValues]], flow: Dataflow, seeded: Sequence[int]
) -> dict[int, list[object]]:
    """Returns the terms of each value's gradient, in order, where it is complete."""
    whole: dict[int, list[object]] = {}
    sent: dict[Hop, list[object]] = {}
    for k in reversed(range(len(stages))):
        parts = {hop.value: sent.pop(hop) for hop in flow.backward if hop.target == k}
        if k == len(stages) - 1:
            parts.update({value: ["seed"] for value in seeded})
        for call in reversed(stages[k]):
            for value in call.gives:
                parts[value] = [*parts.get(value, []), call]
        sent.update({h: parts[h.value] for h in flow.backward if h.source == k})
        made = {value for call in stages[k] for value in call.made}
        here = made.union(flow.input_gradients(k, range(NUM_INPUTS)))
        whole.update({value: parts.get(value, []) for value in here})
    assert not sent
    return whole


@pytest.mark.parametrize("seed", MODELS)
def test_a_gradient_is_needed_where_something_trained_is_reached(seed: int) -> None:
    calls, _ = _model(seed)
    draw = random.Random(seed)
    trained = [draw.random() < 0.3 for _ in calls]
    wanted = [v for v in range(NUM_INPUTS) if draw.random() < 0.3]

    def reaches(value: int) -> bool:
        if value in wanted:
            return True
        makers = [i for i, call in enumerate(calls) if value in call.wants]
        return any(trained[i] or any(map(reaches, calls[i].gives)) for i in makers)

    values = {*range(NUM_INPUTS), *(v for call in calls for v in call.made)}
    needed = needs_gradient(zip(calls, trained, strict=True), wanted)
    assert needed == {value for value in values if reaches(value)}


def test_a_value_goes_straight_to_each_of_its_users() -> None:
    def call(args: tuple[int, ...], uses: set[int], made: int) -> LayerValues:
        return LayerValues(
            args, frozenset(uses), (made,), frozenset(uses), frozenset({made})
        )

    stages = [
        [call((0,), {0}, 1)],
        [call((1,), {1}, 2)],
        [call((1, 2), {2}, 3)],
        [call((1, 3), {1, 3}, 4)],
    ]
    flow = Dataflow(stages)
    a, b, c = (1, 2, 3)
    assert flow.forward == [Hop(a, 0, 1), Hop(a, 1, 3), Hop(b, 1, 2), Hop(c, 2, 3)]
    assert flow.backward == [Hop(a, 3, 1), Hop(a, 1, 0), Hop(b, 2, 1), Hop(c, 3, 2)]
    assert flow.inputs(0) == [0]


@pytest.mark.parametrize("seed", MODELS)
def test_from_recompute_inputs_all_can_be_computed_again(seed: int) -> None:
    """And from less it can not."""
    calls, _ = _model(seed)
    draw = random.Random(seed)
    given = [(tuple(c.uses), c.made, draw.random() < 0.6) for c in calls]
    by_call = list(recompute_inputs_by_layer(given))
    recompute_inputs = [value for values in by_call for value in values]
    assert len(recompute_inputs) == len(set(recompute_inputs))
    assert _can_be_computed(given, set(recompute_inputs))
    for value in recompute_inputs:
        assert not _can_be_computed(given, set(recompute_inputs) - {value})
    for end in range(len(given)):
        assert list(recompute_inputs_by_layer(given[:end])) == by_call[:end]


@pytest.mark.parametrize("seed", MODELS)
def test_without_outputs_that_are_used_again_not_all_can_be_computed(seed: int) -> None:
    """Without any others it can."""
    calls, _ = _model(seed)
    draw = random.Random(seed)
    given = [(tuple(c.uses), c.made, draw.random() < 0.6) for c in calls]
    recompute_inputs = set(
        itertools.chain.from_iterable(recompute_inputs_by_layer(given))
    )
    for i, is_used in enumerate(are_used_again(given)):
        used, _, again = given[i]
        less = [*given[:i], (used, (), again), *given[i + 1 :]]
        if again:
            assert _can_be_computed(less, recompute_inputs) != is_used


def _can_be_computed(
    calls: Sequence[tuple[Sequence[int], Sequence[int], bool]], there: set[int]
) -> bool:
    """Returns whether all recomputed calls have the values that they use."""
    for used, made, again in calls:
        if again and not there.issuperset(used):
            return False
        if again:
            there = there | set(made)
    return True
