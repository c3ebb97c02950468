"""A stream of tokens cut into rows: brute force, and every token once an epoch."""

import numpy as np
import pytest

from lingvo_pipe.input.text.token_stream import TokenStream

LENGTHS = np.array([5, 1, 12, 3, 1, 1, 7, 2])
SEEDS = [None, 0, 2**64 - 1]


def tokens_of(spans):
    """For each row its tokens as (document, position)."""
    laid = [(d, place) for d in spans.documents.tolist() for place in range(LENGTHS[d])]
    return [
        laid[start : start + size]
        for start, size in zip(spans.starts, spans.sizes, strict=True)
    ]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("length", [1, 3, 4, 31, 32, 33, 50])
def test_each_epoch_has_every_token_once(length, seed):
    stream = TokenStream(LENGTHS, length, seed)
    assert stream.rows_per_epoch == -(-32 // length)
    every = [(d, place) for d, size in enumerate(LENGTHS) for place in range(size)]
    for epoch in range(4):
        first = epoch * stream.rows_per_epoch
        rows = tokens_of(stream.spans(first, stream.rows_per_epoch))
        assert sorted(token for row in rows for token in row) == every
        assert sorted(map(len, rows))[1:] == [length] * (len(rows) - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_runs_of_documents(seed):
    stream = TokenStream(LENGTHS, 4, seed)
    for row in tokens_of(stream.spans(0, 40)):
        for (document, place), (following, its_place) in zip(
            row, row[1:], strict=False
        ):
            if following == document and its_place:
                assert its_place == place + 1
            else:
                assert (place, its_place) == (LENGTHS[document] - 1, 0)


def test_without_a_seed_all_is_in_order():
    stream = TokenStream(LENGTHS, 5, None)
    rows = tokens_of(stream.spans(0, stream.rows_per_epoch))
    tokens = [token for row in rows for token in row]
    assert tokens == sorted(tokens)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_any_step_can_be_first(batch_size, seed):
    stream = TokenStream(LENGTHS, 3, seed)
    whole = tokens_of(stream.spans(0, 60))
    for step in range(60 // batch_size):
        anew = TokenStream(LENGTHS, 3, seed)
        rows = tokens_of(anew.spans(step * batch_size, batch_size))
        assert rows == whole[step * batch_size : (step + 1) * batch_size]


def test_padding_follows_the_end():
    stream = TokenStream(LENGTHS, 5, None)
    spans = stream.spans(4, 6, end=7)
    assert spans.sizes.tolist() == [5, 5, 2, 0, 0, 0]
    assert [len(row) for row in tokens_of(spans)] == [5, 5, 2, 0, 0, 0]


def test_seeds_and_epochs_have_orders_of_their_own():
    streams = [TokenStream(LENGTHS, 8, seed) for seed in range(6)]
    found = [
        tuple(map(tuple, tokens_of(stream.spans(4 * epoch, 4))))
        for stream in streams
        for epoch in range(6)
    ]
    assert len(set(found)) == 36


def test_documents_are_shuffled_and_rows_too():
    long = TokenStream(np.full(200, 3), 12, 0)
    firsts = [row[0] for row in np.split(long.spans(0, 50).documents, 50)]
    order = np.concatenate([long.spans(n, 1).documents for n in range(50)])
    assert len(set(order.tolist())) == 200
    assert firsts != sorted(firsts)


def test_the_order_never_changes():
    # Another order here would break every run that is resumed.
    spans = TokenStream(LENGTHS, 6, 1).spans(8, 2)
    assert tokens_of(spans) == [
        [(7, 0), (7, 1), (5, 0), (1, 0), (3, 0), (3, 1)],
        [(4, 0), (6, 0), (6, 1), (6, 2), (6, 3), (6, 4)],
    ]
