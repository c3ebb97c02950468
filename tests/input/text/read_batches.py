"""Batches of translations as NumPy arrays, and as the texts they are of."""

import hashlib

import numpy as np
import tensorflow as tf

from lingvo_pipe.nested_map import NestedMap


def take(batches, number=-1):
    return [NestedMap(batch).Transform(np.asarray) for batch in batches.take(number)]


def assert_same(batches, others):
    assert len(batches) == len(others) > 0
    for batch, other in zip(batches, others, strict=True):
        assert batch.Keys() == other.Keys()
        for one, another in zip(batch.Flatten(), other.Flatten(), strict=True):
            np.testing.assert_array_equal(one, another)


def digest_of(batches):
    parts = [np.ascontiguousarray(part) for b in batches for part in b.Flatten()]
    joined = b"".join(part.tobytes() for part in parts)
    return hashlib.sha256(joined).hexdigest()[:16]


def segments(stream, name="ids"):
    """Row by row the tokens of each segment; segments are whole and in order."""
    rows = []
    for ids, numbers, places in zip(
        stream[name], stream.segment_ids, stream.segment_pos, strict=True
    ):
        used = np.flatnonzero(numbers)
        np.testing.assert_array_equal(used, np.arange(len(used)))
        assert not ids[len(used) :].any()
        assert not places[len(used) :].any()
        counts = np.bincount(numbers[used])[1:]
        np.testing.assert_array_equal(
            numbers[used], np.repeat(np.arange(len(counts)) + 1, counts)
        )
        np.testing.assert_array_equal(
            places[used], np.concatenate([np.arange(0), *map(np.arange, counts)])
        )
        rows.append(
            [x.tolist() for x in np.split(ids[used], np.cumsum(counts)[:-1])]
            if counts.size
            else []
        )
    return rows


def detokenized(given, sentences):
    ids = tf.ragged.constant(sentences, tf.int32).to_tensor(given.vocabulary.pad_id)
    return [text.decode() for text in given.vocabulary.Detokenize(ids).numpy()]


def all_texts(given, batches):
    """The (source, target, language asked for) that the batches' tokens are of."""
    vocabulary = given.vocabulary
    pairs = [
        pair
        for batch in batches
        for row in zip(
            segments(batch.source), segments(batch.target, "labels"), strict=True
        )
        for pair in zip(*row, strict=True)
    ]
    for source, target in pairs:
        for sentence in (source, target):
            assert sentence.index(vocabulary.eos_id) == len(sentence) - 1
    sources = detokenized(given, [source[1:] for source, _ in pairs])
    targets = detokenized(given, [target for _, target in pairs])
    first = vocabulary.LanguageIds(vocabulary.languages)[0]
    languages = [vocabulary.languages[source[0] - first] for source, _ in pairs]
    return list(zip(sources, targets, languages, strict=True))


def asked_for(examples):
    return sorted((source, target, to) for source, target, _, to in examples)
