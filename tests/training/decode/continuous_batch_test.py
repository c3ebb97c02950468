"""A text is the same in whatever rows, groups, calls and stages it is continued."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.core.errors import UserNumberError
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.models.transformer import sample_decode
from lingvo_pipe.models.transformer.incremental import placed_cells
from lingvo_pipe.training.decode import continuous_batch as tested
from lingvo_pipe.training.decode.continuous_batch import (
    ContinuousBatch,
    length_classes,
    text_rows,
)
from lingvo_pipe.training.task.protocols import Sampling, TextRows
from tests.models.transformer.continued_texts import (
    EOS,
    continued,
    continuous_batch,
    prompt_batch,
    tensors,
    up_to_end,
)
from tests.models.transformer.small_models import (
    NUM_TOKENS,
    language_model_task,
    sentences,
)
from tests.support.errors import fails
from tests.training.toy_run import make_task

PROMPTS = [[1, *text] for text in sentences([0, 9, 3, 1, 14, 0, 6, 2], seed=4)]
SAMPLING = Sampling(12, temperature=1.3, top_p=0.95, seed=5)


def model(splits: int) -> Any:
    """Returns the same language model, cut into this many stages."""
    keras.utils.set_random_seed(1)
    p = language_model_task()
    p.pipeline.Set(splits=splits)
    return p.Instantiate()


@functools.cache
def expected() -> list[list[int]]:
    """Returns the texts, each continued alone, in one call."""
    task = model(1)

    def run(rows: TextRows) -> Any:
        num_rows, num_tokens = tf.unstack(tf.shape(rows.ids))
        theta = task.Values()
        states = task.TextStates(theta, num_rows, num_tokens)
        with ForwardContext(do_eval=True):
            rows, _ = task.ContinueTexts(
                theta, rows, states, tensors(SAMPLING), EOS, num_tokens
            )
        return rows.ids

    field = tf.TensorSpec([1], tf.int32)
    any_length = TextRows(tf.TensorSpec([1, None], tf.int32), *[field] * 4)
    traced = tf.function(run, autograph=False).get_concrete_function(any_length)
    texts = []
    for number, prompt in enumerate(PROMPTS):
        rows = text_rows(prompt_batch([prompt]), SAMPLING.max_tokens, EOS)
        (ids,) = traced(rows._replace(numbers=tf.constant([number]))).numpy().tolist()
        texts.append(up_to_end(ids, len(prompt), SAMPLING))
    return texts


def short_calls(
    task: Any, batch_size: int, num_groups: int | None, tokens_per_call: int
) -> ContinuousBatch:
    """Returns rows that continue by a few tokens in each call, also of prompts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tested, "_TOKENS_PER_CALL", tokens_per_call)
        patch.setattr(sample_decode, "_CHUNK_SIZE", 6)
        return continuous_batch(task, batch_size, num_groups)


@functools.cache
def two_stages() -> tuple[Any, ContinuousBatch]:
    """Returns a task in two stages, and three rows in which it continues texts."""
    task = model(2)
    return task, short_calls(task, 3, None, 4)


@pytest.mark.parametrize("seed", range(5))
def test_texts_of_a_class_have_similar_lengths(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 200, size=seed * 7)
    classes = list(length_classes(lengths))
    numbers = [number for numbers in classes for number in numbers]
    assert sorted(numbers) == list(range(len(lengths)))
    assert all(np.diff(lengths[numbers]) <= 0)
    assert all(lengths[x[0]] <= 2 * lengths[x[-1]] for x in classes)
    assert all(
        lengths[longer[0]] > 2 * lengths[shorter[0]]
        for longer, shorter in itertools.pairwise(classes)
    )


def test_texts_are_of_many_lengths() -> None:
    new = [len(x) - len(y) for x, y in zip(expected(), PROMPTS, strict=True)]
    assert max(new) == SAMPLING.max_tokens
    assert min(new) < SAMPLING.max_tokens / 2


def assert_texts_are_those_of_one_by_one(batch: ContinuousBatch) -> None:
    """Also call after call, with prompts in another order."""
    assert continued(batch, PROMPTS, SAMPLING) == expected()
    assert continued(batch, PROMPTS[:2], SAMPLING) == expected()[:2]
    likeliest = SAMPLING._replace(temperature=0.0)
    backwards = continued(batch, PROMPTS[::-1], likeliest)
    assert backwards[::-1] == continued(batch, PROMPTS, likeliest)


def test_texts_are_those_of_one_by_one() -> None:
    _, batch = two_stages()
    assert_texts_are_those_of_one_by_one(batch)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("splits", "batch_size", "num_groups", "tokens_per_call"),
    [
        (1, 1, 1, 16),
        (1, 3, 1, 1),
        (1, 9, 2, 5),
        (2, 1, 3, 3),
        (2, 2, 2, 16),
        (2, 5, 4, 2),
        (3, 4, None, 7),
        (4, 6, None, 3),
    ],
)
def test_texts_are_those_of_one_by_one_in_any_rows(
    splits: int, batch_size: int, num_groups: int | None, tokens_per_call: int
) -> None:
    batch = short_calls(model(splits), batch_size, num_groups, tokens_per_call)
    assert_texts_are_those_of_one_by_one(batch)


def test_what_a_row_has_read_before_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, batch = two_stages()
    first_states = batch._first_states

    def damaged(state: Any) -> Any:
        with tf.device(state.backing_device):
            return state + np.nan

    monkeypatch.setattr(
        batch,
        "_first_states",
        lambda *sizes: tf.nest.map_structure(damaged, first_states(*sizes)),
    )
    assert continued(batch, PROMPTS, SAMPLING) == expected()


def test_tokens_beyond_the_vocabulary_are_never_drawn() -> None:
    batch, size = continuous_batch(model(1), 9, size=5), 5
    texts = continued(batch, PROMPTS, SAMPLING._replace(temperature=9.0, top_p=1.0))
    new = [text[len(prompt) :] for text, prompt in zip(texts, PROMPTS, strict=True)]
    assert {token for tokens in new for token in tokens} == {*range(size)}


def test_scores_that_are_not_finite_are_refused() -> None:
    task, batch = two_stages()
    bias = task.pipeline.cells[-1].vars.b
    before = bias.numpy().copy()
    bias.assign(tf.fill([NUM_TOKENS], np.nan))
    try:
        with fails(UserNumberError, path="score"):
            continued(batch, PROMPTS, SAMPLING)
    finally:
        bias.assign(before)  # Other tests use the task, too.


def test_states_stay_on_their_devices() -> None:
    task, batch = two_stages()
    cells = placed_cells(task.pipeline, task.Values().pipeline)
    # Keys and values of two groups.
    devices = [cell.device for cell in cells if cell.has_states for _ in range(2)] * 2
    assert len(set(devices)) == 2
    rows = text_rows(prompt_batch(PROMPTS[:3]), SAMPLING.max_tokens, EOS)
    states = batch._first_states(*tf.unstack(tf.shape(rows.ids)))
    for _ in range(2):
        assert [x.backing_device for x in tf.nest.flatten(states)] == devices
        rows, states = batch._continued(rows, states, tensors(SAMPLING))


def test_no_group_waits_for_another() -> None:
    """Their loops are in one function, beside one another."""
    _, batch = two_stages()
    graph = batch._continued.graph
    has_loops = []
    for function in graph.as_graph_def().library.function:
        shapes = ((x, x.attr["output_shapes"].list.shape) for x in function.node_def)
        loops = [x for x, listed in shapes if any(len(s.dim) == 4 for s in listed)]
        if loops:
            has_loops.append(loops)
    # Of each group, a loop reads prompts, and another one continues texts.
    (loops,) = has_loops
    assert len(loops) == 4
    names = {loop.name for loop in loops}
    before = [
        {name.split(":")[0].removeprefix("^") for name in loop.input} & names
        for loop in loops
    ]
    assert sorted(map(len, before)) == [0, 0, 1, 1]
    assert len(set().union(*before)) == 2


def test_a_row_is_exchanged_once_it_is_finished() -> None:
    """Waiting texts are taken from the last one on."""
    texts = _rows([[1, 1, 1], [2, 1, 1], [3, 1, 1]], numbers=[0, 1, 2])
    rows = _rows([[0, 0, 0]] * 2, numbers=[-1, -1])
    waiting = [0, 2, 1]
    assert tested._exchange(rows, texts, waiting) == 0
    assert rows.numbers.tolist() == [1, 2]
    rows.places[:] = 2, 1
    rows.ids[:, 2] = 7
    assert tested._exchange(rows, texts, waiting) == 1
    assert rows.numbers.tolist() == [0, 2]
    assert rows.places.tolist() == [0, 1]
    assert texts.ids.tolist() == [[1, 1, 1], [2, 1, 7], [3, 1, 1]]
    rows.places[:] = 2
    assert tested._exchange(rows, texts, waiting) == 2
    assert rows.numbers.tolist() == [-1, -1]
    assert tested._exchange(rows, texts, waiting) == 0


def _rows(ids: Sequence[Sequence[int]], numbers: Sequence[int]) -> TextRows:
    """Returns unfinished texts, or empty rows if the numbers are negative."""
    fields = [np.array(x, np.int32) for x in (ids, numbers)]
    first, last = fields[1] * 0, fields[1] * 0 + 3 * (fields[1] >= 0)
    return TextRows(fields[0], first + 1, fields[1], first, last)


def test_a_task_that_does_not_generate_is_refused() -> None:
    with fails(path="task", got="ImageClassifier"):
        continuous_batch(make_task(), 3)
    with fails(path="num_groups", got=0):
        continuous_batch(model(1), 3, num_groups=0)
