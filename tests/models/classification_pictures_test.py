"""What is kept of an evaluation, and that what is drawn of it are pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.models import classification_pictures
from lingvo_pipe.models.classification_pictures import ClassificationPictures
from lingvo_pipe.models.draw_classification import displayed
from lingvo_pipe.nested_map import NestedMap

NUM_CLASSES = 3
BATCH = 5


def _batch(
    seed: int, num_channels: int = 3, num_padding: int = 0
) -> tuple[NestedMap, tf.Tensor]:
    """A batch and logits."""
    random = np.random.default_rng(seed)
    batch = NestedMap(
        image=tf.constant(random.normal(size=[BATCH, 4, 6, num_channels])),
        label=tf.constant(random.integers(NUM_CLASSES, size=BATCH), tf.int32),
        weight=tf.constant(np.float32(np.arange(BATCH) < BATCH - num_padding)),
    )
    return batch, tf.constant(random.normal(size=[BATCH, NUM_CLASSES]))


def _added(*batches: tuple[NestedMap, tf.Tensor], **kwargs: Any) -> Any:
    pictures = ClassificationPictures(**kwargs)
    for batch in batches:
        pictures.Add(*batch)
    return pictures


def _decoded(picture: bytes) -> np.ndarray:
    return tf.io.decode_png(picture).numpy()


@pytest.mark.parametrize("num_channels", [1, 2, 3, 4])
def test_pictures_are_the_same_for_the_same_batches(num_channels: int) -> None:
    batches = [_batch(seed, num_channels) for seed in range(3)]
    drawn, again = (_added(*batches).Draw() for _ in range(2))
    assert drawn == again
    assert set(drawn) == {"images", "confusion"}
    for picture in drawn.values():
        assert _decoded(picture).std() > 10, "not blank"
    others = _added(*batches[::-1]).Draw()
    assert others["confusion"] == drawn["confusion"], "counts know no order"
    assert others["images"] != drawn["images"]


def test_the_first_images_are_kept_and_no_more() -> None:
    batches = [_batch(seed) for seed in range(9)]
    pictures = _added(*batches)
    images = np.concatenate([batch.image for batch, _ in batches])
    labels = np.concatenate([batch.label for batch, _ in batches])
    predicted = np.concatenate([tf.argmax(logits, -1) for _, logits in batches])
    assert len(pictures._images) == 16
    for i, image in enumerate(pictures._images):
        np.testing.assert_array_equal(image.pixels, images[i])
        assert (image.label, image.predicted) == (labels[i], predicted[i])
    assert pictures._confusion.counts.sum() == len(labels)
    assert pictures._confusion.counts.trace() == sum(labels == predicted)


def test_padding_is_left_out() -> None:
    batch, logits = _batch(0, num_padding=2)
    cut = NestedMap({name: value[:3] for name, value in batch.items()})
    assert _added((batch, logits)).Draw() == _added((cut, logits[:3])).Draw()
    empty, logits = _batch(0, num_padding=BATCH)
    assert set(_added((empty, logits)).Draw()) == {"confusion"}


def test_what_is_no_image_is_not_shown() -> None:
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
    pictures = _added(_many_classes(100, wrong=True))
    assert pictures._confusion.most_confused(20).tolist() == [3, 5, 7, 8]
    shown = _decoded(pictures.Draw()["confusion"])
    few = _decoded(_added(_batch(0)).Draw()["confusion"])
    assert shown.shape[0] < 2 * few.shape[0]
    assert set(_added(_many_classes(100, wrong=False)).Draw()) == {"images"}


def test_of_too_many_classes_nothing_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(classification_pictures, "_MOST_CLASSES_COUNTED", 99)
    pictures = _added(_many_classes(100, wrong=True))
    assert pictures._confusion is None
    assert set(pictures.Draw()) == {"images"}


def test_classes_have_names_where_they_are_known() -> None:
    batches = _batch(0), _batch(1)
    numbers = _added(*batches).Draw()
    assert _added(*batches, class_names=["0", "1", "2"]).Draw() == numbers
    assert _added(*batches, class_names=["0"]).Draw() == numbers
    named = _added(*batches, class_names=["ant", "a bee " * 20, r"$\cat$"]).Draw()
    for name, picture in numbers.items():
        assert named[name] != picture


@pytest.mark.parametrize("num_channels", [1, 2, 3, 7])
def test_images_of_any_range_are_displayed(num_channels: int) -> None:
    image = np.random.default_rng(0).normal(size=[5, 4, num_channels])
    found = displayed(image)
    assert found.shape == ((5, 4, 3) if num_channels == 3 else (5, 4))
    assert (found.min(), found.max()) == (0.0, 1.0)
    np.testing.assert_allclose(displayed(7 * image - 30), found, atol=1e-12)
    assert not displayed(np.full([5, 4, num_channels], 3.0)).any()
