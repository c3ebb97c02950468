"""Plans: the sentences of an order, packed round by round, from any step on."""

import itertools

import numpy as np
import pytest

from lingvo_pipe.input.text import batch_plan
from lingvo_pipe.input.text.batch_plan import (
    FIRST,
    BatchPlanner,
    PlanPositions,
    Position,
    pack,
)
from lingvo_pipe.input.text.mixture_order import MixtureOrder

NUM_SENTENCES = 100
LENGTHS = np.random.default_rng(0).integers(1, 12, (NUM_SENTENCES, 2))
CAPACITY = (20, 16)
ORDER = MixtureOrder(
    {"a-b": np.arange(0, 70), "b-a": np.arange(70, 95)}, 3.0, 5, shuffle=True
)


def training(planner):
    """The batches without their positions."""
    return (plan for _, plan in planner.training(ORDER, 0, FIRST))


@pytest.fixture(params=[4096, 40])
def planner(request, monkeypatch):
    monkeypatch.setattr(batch_plan, "_WINDOW_SIZE", request.param)
    return BatchPlanner(LENGTHS, CAPACITY, 6)


def rows_of(plans):
    rows = []
    for plan in plans:
        assert plan.sentences.dtype == np.int64
        assert plan.row_sizes.shape == (6,)
        assert plan.row_sizes.sum() == len(plan.sentences)
        rows += np.split(plan.sentences, np.cumsum(plan.row_sizes)[:-1])
    return rows


def test_each_round_is_packed_whole_and_by_itself(planner):
    rows = iter(rows_of(itertools.islice(training(planner), 60)))
    for number in range(5):
        wanted = ORDER.sentences(number)
        found: list[list[int]] = []
        while len(found) < len(wanted):
            found += next(rows).tolist()
        assert sorted(found) == sorted(wanted.tolist())


def test_rows_have_the_order_of_the_packing(planner):
    sentences = np.arange(NUM_SENTENCES)[::-1][:40]  # One window.
    rows = rows_of(planner.one_pass(sentences))
    packed = [sentences[row].tolist() for row in pack(LENGTHS[sentences], CAPACITY)]
    assert [row.tolist() for row in rows if len(row)] == packed


def test_rows_have_room_for_their_sentences(planner):
    for row in rows_of(itertools.islice(training(planner), 60)):
        assert np.all(LENGTHS[row].sum(0) <= CAPACITY)


@pytest.mark.parametrize("later", [0, 1, 5])
def test_training_resumes_from_any_position(planner, later, monkeypatch):
    whole = list(itertools.islice(planner.training(ORDER, 0, FIRST), 40))
    for place, _ in whole[:30]:
        packed: list[int] = []

        def counted(*args, packed=packed):
            packed.append(1)
            return pack(*args)

        monkeypatch.setattr(batch_plan, "pack", counted)
        start = place.step + later
        rest = itertools.islice(planner.training(ORDER, start, place), 3)
        for (one_position, one), (other_position, other) in zip(
            whole[start : start + 3], rest, strict=True
        ):
            assert one_position == other_position
            np.testing.assert_array_equal(one.sentences, other.sentences)
            np.testing.assert_array_equal(one.row_sizes, other.row_sizes)
        # Windows of 40 sentences have two batches or so.
        assert len(packed) <= 3 + later


def test_a_position_in_other_sentences_is_told(planner, logged):
    positions, position = PlanPositions(planner, ORDER), Position(2, 0, 1, 3)
    positions.add(position)
    text = positions.text_before(3)
    assert [positions.read(text, step) for step in (3, 1)] == [position, FIRST]
    assert positions.read("", 3) == FIRST
    assert not logged
    other = PlanPositions(BatchPlanner(LENGTHS + 1, CAPACITY, 6), ORDER)
    assert other.read(text, 3) == FIRST
    assert len(logged) == 1


def test_one_pass_has_every_sentence_once_and_ends_in_empty_rows(planner):
    sentences = np.arange(NUM_SENTENCES)[::-3]
    plans = list(planner.one_pass(sentences))
    rows = rows_of(plans)
    assert sorted(np.concatenate(rows)) == sorted(sentences)
    sizes = np.concatenate([plan.row_sizes for plan in plans])
    empty = np.flatnonzero(sizes == 0)
    assert len(empty) < 6
    np.testing.assert_array_equal(
        empty, np.arange(len(sizes))[len(sizes) - len(empty) :]
    )


def test_without_packing_each_sentence_has_a_row(planner):
    alone = BatchPlanner(LENGTHS, None, 6)
    sentences = np.arange(20)
    first, *_, last = alone.one_pass(sentences)
    np.testing.assert_array_equal(first.sentences, np.arange(6))
    np.testing.assert_array_equal(last.row_sizes, [1, 1, 0, 0, 0, 0])
    plans = itertools.islice(training(alone), 16)
    found = np.concatenate([plan.sentences for plan in plans])[:95]
    np.testing.assert_array_equal(found, ORDER.sentences(0))
