"""An image that can't be read is named, and the batches before it are as ever."""

from __future__ import annotations

import io
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.input.example_order import stream_indices
from lingvo_pipe.input.images.image_errors import NamedErrorsDataset
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.images.label_subset import LabelSubset
from lingvo_pipe.input.transforms import recipes
from tests.input.example_images import example, jpeg, write_folder
from tests.input.listed_examples import ListedExamples, prepare
from tests.support.cases import exhaustive
from tests.support.errors import fails

BATCH = 4


def _input(dataset: str, data_dir: Path, **values: Any) -> Any:
    p = ImageClassificationInput.Params().Set(
        dataset=dataset, data_dir=str(data_dir), batch_size=BATCH, shuffle=False
    )
    return p.Set(**recipes.imagenet(12)).Set(**values).Instantiate()


def _damaged(kind: str) -> bytes:
    whole = jpeg(example("train", 0)[0])
    png = tf.io.encode_png(example("train", 0)[0]).numpy()
    return {
        "empty": b"",
        "a text": b"not an image",
        "cut short": whole[: len(whole) // 2],
        "a PNG cut short": png[: len(png) // 2],
    }[kind]


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of readable images."""
    data_dir = tmp_path_factory.mktemp("whole")
    write_folder(data_dir / "photos")
    return data_dir


def _until_error(batches: Any) -> tuple[list[bytes], str]:
    """Returns the images of the batches before an error, and what it names."""
    images: list[bytes] = []
    with fails(path="dataset") as info:
        for batch in itertools.islice(batches, 100):
            images.append(batch.image.numpy().tobytes())
    return images, info.value.got


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(exhaustive("empty", 0), exhaustive("a text", 13)),
        *(("cut short", 36), exhaustive("a PNG cut short", 13)),
    ],
)
def test_a_file_is_named_by_its_path(
    tmp_path: Path, whole: Path, kind: str, place: int
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    data = _input("image_folder:photos", tmp_path)
    path = data._source.Name(place)
    Path(path).write_bytes(_damaged(kind))
    for method in ("EvalBatches", "TrainBatches"):
        found, named = _until_error(getattr(data, method)())
        assert named.startswith(f"{path} (")
        assert "{{" not in named
        assert "[Op" not in named
        # Whatever was read before it has come.
        healthy = getattr(_input("image_folder:photos", whole), method)()
        want = [b.image.numpy().tobytes() for b in healthy.take(place // BATCH)]
        assert found == want


def test_of_several_the_first_that_is_drawn_is_named(
    tmp_path: Path, whole: Path
) -> None:
    """In a later epoch and after resuming as well."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    data = _input("image_folder:photos", tmp_path, shuffle=True)
    paths = {number: data._source.Name(number) for number in (5, 20)}
    for path in paths.values():
        Path(path).write_bytes(b"")
    named = set()
    for start_step in (0, 18):
        start = start_step * BATCH
        drawn = stream_indices(0, start, start + 99, data.num_examples).tolist()
        first = min(paths, key=drawn.index)
        found, name = _until_error(data.TrainBatches(start_step))
        assert [p for p in paths.values() if p in name] == [paths[first]]
        assert len(found) == drawn.index(first) // BATCH
        named.add(first)
    assert named == set(paths)


def test_a_file_that_vanished_is_named(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    data = _input("image_folder:photos", tmp_path)
    batches, path = data.EvalBatches(), data._source.Name(3)
    Path(path).unlink()
    assert path in _until_error(batches)[1]


def test_searching_for_the_brightest_pixel_names_it_too(
    tmp_path: Path, whole: Path
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    data = _input("image_folder:photos", tmp_path)
    path = data._source.Name(11)
    Path(path).write_bytes(b"")
    with fails(path="dataset") as info:
        _input("image_folder:photos", tmp_path, pixel_max=200).EvalBatches()
    assert path in info.value.got


class DamagedPhotos(ListedExamples):
    """`damaged_photos`: 40 JPEG images of two classes, the 18th no image."""

    def Features(self) -> dict[str, Any]:
        return {
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=["even", "odd"]),
        }

    def Examples(self) -> Iterator[dict[str, Any]]:
        for number in range(40):
            content = jpeg(example("train", number)[0])
            if number == 17:
                content = _damaged("cut short")
            yield {"image": io.BytesIO(content), "label": number % 2}


def test_a_record_is_named_by_its_index(tmp_path: Path) -> None:
    builder = prepare("damaged_photos", tmp_path)
    place = f"example 17 of split 'train' of damaged_photos in {builder.data_dir} ("
    found, name = _until_error(_input("damaged_photos", tmp_path).EvalBatches())
    assert name.startswith(place)
    assert len(found) == 17 // BATCH
    # The index is in the split, whichever examples are read.
    odd = _input("damaged_photos", tmp_path, labels=[1])
    assert _until_error(odd.TrainBatches())[1].startswith(place)
    even = _input("damaged_photos", tmp_path, labels=[0])
    assert len(list(even.EvalBatches())) == 20 // BATCH


class FaultyFetch:
    """A source that cannot fetch one record, nor the other records of its chunk."""

    def __init__(self, source: Any, faulty: int):
        self._source, self._faulty = source, faulty

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def Fetch(self, indices: tf.Tensor) -> Any:
        is_there = tf.debugging.assert_none_equal(indices, np.int64(self._faulty))
        with tf.control_dependencies([is_there] if is_there is not None else []):
            return self._source.Fetch(tf.identity(indices))


@pytest.mark.parametrize("faulty", [0, *map(exhaustive, [4, 30, 31, 33]), 36])
def test_a_record_that_cannot_be_fetched_is_named(whole: Path, faulty: int) -> None:
    """Others that are fetched at the same time fail with it."""
    data = _input("image_folder:photos", whole)
    source = data._source
    data.__dict__["_source"] = FaultyFetch(source, faulty)
    for batches in (data.EvalBatches(), data.TrainBatches(2)):
        assert source.Name(faulty) in _until_error(batches)[1]


def test_searching_for_labels_names_it_too(whole: Path) -> None:
    data = _input("image_folder:photos", whole)
    source = FaultyFetch(data._source, 33)
    with fails(path="dataset") as info:
        LabelSubset(source, [1])
    assert source.Name(33) in info.value.got


def test_other_errors_stay_as_they_are(whole: Path) -> None:
    """An error that no example explains, such as one in a transform."""
    data = _input("image_folder:photos", whole)
    batches = data.EvalBatches().map(lambda b: tf.reshape(b.image, b.label[:1] - 9))
    named = NamedErrorsDataset(batches, data._source, np.arange)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Reshape"):
        next(iter(named))


def test_nothing_else_changes(whole: Path) -> None:
    data = _input("image_folder:photos", whole)
    batches = data.EvalBatches()
    assert batches.element_spec == data.element_spec
    assert int(batches.cardinality()) == data.num_batches == 10
    named = [b.image.numpy() for b in batches]
    np.testing.assert_array_equal(
        named, [b.image.numpy() for b in batches._dataset.take(100)]
    )
    assert [len(list(iter(batches))) for _ in range(2)] == [10, 10]
