"""Images of an evaluation, and counts of confused classes against counting by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.models.images import classification_images
from lingvo_pipe.models.images.classification_images import (
    ClassificationImages,
    Confusion,
    displayed,
)
from lingvo_pipe.nested_map import NestedMap
from tests.support.cases import exhaustive

NUM_CLASSES = 6
BATCH = 5


def _batch(
    seed: int, num_channels: int = 3, num_padding: int = 0
) -> tuple[NestedMap, tf.Tensor]:
    """Returns a batch and logits."""
    random = np.random.default_rng(seed)
    batch = NestedMap(
        image=tf.constant(random.normal(size=[BATCH, 4, 6, num_channels])),
        label=tf.constant(random.integers(NUM_CLASSES, size=BATCH), tf.int32),
        weight=tf.constant(np.float32(np.arange(BATCH) < BATCH - num_padding)),
    )
    return batch, tf.constant(random.normal(size=[BATCH, NUM_CLASSES]))


def _added(*batches: tuple[NestedMap, tf.Tensor], **kwargs: Any) -> Any:
    drawing = ClassificationImages(**kwargs)
    for batch in batches:
        drawing.Add(*batch)
    return drawing


def _decoded(png: bytes) -> np.ndarray:
    return tf.io.decode_png(png).numpy()


@pytest.mark.parametrize("num_channels", [*map(exhaustive, [1, 2, 4]), 3])
def test_equal_batches_make_equal_images(num_channels: int) -> None:
    batches = [_batch(seed, num_channels) for seed in range(3)]
    drawn, again = (_added(*batches).Draw() for _ in range(2))
    assert drawn == again
    assert set(drawn) == {"images", "confusion"}
    for png in drawn.values():
        assert _decoded(png).std() > 10, "not blank"
    others = _added(*batches[::-1]).Draw()
    assert others["confusion"] == drawn["confusion"], "counts know no order"
    assert others["images"] != drawn["images"]


def test_only_the_first_images_are_collected() -> None:
    batches = [_batch(seed) for seed in range(9)]
    drawing = _added(*batches)
    images = np.concatenate([batch.image for batch, _ in batches])
    labels = np.concatenate([batch.label for batch, _ in batches])
    predicted = np.concatenate([tf.argmax(logits, -1) for _, logits in batches])
    assert len(drawing.images) == 16
    for i, image in enumerate(drawing.images):
        np.testing.assert_array_equal(image.pixels, images[i])
        assert (image.label, image.predicted) == (labels[i], predicted[i])
    assert drawing.confusion.counts.sum() == len(labels)
    assert drawing.confusion.counts.trace() == sum(labels == predicted)


def test_padding_is_left_out() -> None:
    batch, logits = _batch(0, num_padding=2)
    cut = NestedMap({name: value[:3] for name, value in batch.items()})
    assert _added((batch, logits)).Draw() == _added((cut, logits[:3])).Draw()
    empty, logits = _batch(0, num_padding=BATCH)
    assert set(_added((empty, logits)).Draw()) == {"confusion"}


def test_inputs_other_than_images_are_not_shown() -> None:
    batch, logits = _batch(0)
    batch.image = tf.reshape(batch.image, [BATCH, -1])
    assert set(_added((batch, logits)).Draw()) == {"confusion"}


def _many_classes(num_classes: int, wrong: bool) -> tuple[NestedMap, tf.Tensor]:
    batch, _ = _batch(0)
    label = tf.constant([7, 7, 7, 90, 3])
    batch.label = label
    predicted = tf.constant([8, 8, 7, 90, 5]) if wrong else label
    return batch, tf.one_hot(predicted, num_classes)


def test_of_many_classes_the_most_confused_are_shown() -> None:
    drawing = _added(_many_classes(100, wrong=True))
    assert drawing.confusion.most_confused(20).tolist() == [3, 5, 7, 8]
    shown = _decoded(drawing.Draw()["confusion"])
    few = _decoded(_added(_batch(0)).Draw()["confusion"])
    assert shown.shape[0] < 2 * few.shape[0]
    assert set(_added(_many_classes(100, wrong=False)).Draw()) == {"images"}


def test_of_too_many_classes_nothing_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classification_images, "_MAX_CLASSES_COUNTED", 99)
    drawing = _added(_many_classes(100, wrong=True))
    assert drawing.confusion is None
    assert set(drawing.Draw()) == {"images"}


def test_classes_have_names_where_they_are_known() -> None:
    batches = _batch(0), _batch(1)
    numbers = _added(*batches).Draw()
    assert _added(*batches, class_names=["0", "1", "2"]).Draw() == numbers
    assert _added(*batches, class_names=["0"]).Draw() == numbers
    named = _added(*batches, class_names=["ant", "a bee " * 20, r"$\cat$"]).Draw()
    for name, png in numbers.items():
        assert named[name] != png


@pytest.mark.parametrize("num_channels", [1, 2, 3, 7])
def test_images_of_any_range_are_displayed(num_channels: int) -> None:
    image = np.random.default_rng(0).normal(size=[5, 4, num_channels])
    found = displayed(image)
    assert found.shape == ((5, 4, 3) if num_channels == 3 else (5, 4))
    assert (found.min(), found.max()) == (0.0, 1.0)
    np.testing.assert_allclose(displayed(7 * image - 30), found, atol=1e-12)
    assert not displayed(np.full([5, 4, num_channels], 3.0)).any()


def _counted(num_examples: int, seed: int = 0, batch_size: int = 7) -> Confusion:
    confusion = Confusion(NUM_CLASSES)
    for start in range(0, num_examples, batch_size):
        confusion.add(*_random(num_examples, seed)[:, start : start + batch_size])
    return confusion


def _random(num_examples: int, seed: int) -> np.ndarray:
    """Returns labels and predictions: `[2, N]`."""
    return np.random.default_rng(seed).integers(NUM_CLASSES, size=[2, num_examples])


@pytest.mark.parametrize("batch_size", [7, 200])
def test_every_example_is_counted_once(batch_size: int) -> None:
    pairs = _random(200, 1).T.tolist()
    counts = _counted(200, 1, batch_size).counts
    for i, j in itertools.product(range(NUM_CLASSES), repeat=2):
        assert counts[i, j] == pairs.count([i, j])


def _by_hand(confusion: Confusion, max_classes: int) -> list[int]:
    """Takes pairs in the order of their counts, as long as there is room."""
    counts = confusion.counts
    pairs = sorted(
        itertools.combinations(range(NUM_CLASSES), 2),
        key=lambda pair: -(counts[pair] + counts[pair[::-1]]),
    )
    found: set[int] = set()
    for pair in pairs:
        if not counts[pair] + counts[pair[::-1]] or len(found | {*pair}) > max_classes:
            break
        found |= {*pair}
    return sorted(found)


@pytest.mark.parametrize("num_examples", [0, 1, 3, 8, 200])
@pytest.mark.parametrize("max_classes", [2, 3, 4, 5])
def test_the_most_confused_are_shown(num_examples: int, max_classes: int) -> None:
    for seed in range(20):
        confusion = _counted(num_examples, seed)
        found = confusion.most_confused(max_classes).tolist()
        assert found == _by_hand(confusion, max_classes)
        assert len(found) <= max_classes


@pytest.mark.parametrize("max_classes", [NUM_CLASSES, 100])
def test_few_classes_are_all_shown(max_classes: int) -> None:
    found = _counted(0).most_confused(max_classes)
    assert found.tolist() == list(range(NUM_CLASSES))


def test_shares_are_of_all_examples_of_a_class() -> None:
    confusion = Confusion(3)
    confusion.add(np.array([0, 0, 0, 0, 2]), np.array([0, 1, 1, 2, 0]))
    assert confusion.shares(np.arange(3)).tolist() == [
        [0.25, 0.5, 0.25],
        [0.0, 0.0, 0.0],
        [1.0, 0.0, 0.0],
    ]
    assert confusion.shares(np.array([0, 2])).tolist() == [[0.25, 0.25], [1.0, 0.0]]
