"""Image batches: exact resumption, one pass for evaluation, problems named."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.transforms import recipes
from lingvo_pipe.input.transforms.colors import Normalization
from lingvo_pipe.input.transforms.geometry import Cutout, Resize
from lingvo_pipe.nested_map import NestedMap
from tests.input.example_images import CLASSES, SIZES, write_folder
from tests.input.listed_examples import prepare
from tests.input.text.read_batches import assert_same, digest_of, take
from tests.support.cases import exhaustive
from tests.support.errors import fails


@pytest.fixture(scope="module")
def make_input(tmp_path_factory):
    """Makes inputs of the embedded digits, which are prepared once."""
    data_dir = str(tmp_path_factory.mktemp("data"))

    def make(**values):
        p = ImageClassificationInput.Params()
        p.Set(data_dir=data_dir, batch_size=64, pixel_max=16)
        return p.Set(**values).Instantiate()

    return make


PHOTOS, FOLDER = "photos", "image_folder:photo_folder"


@pytest.fixture(scope="module", params=[PHOTOS, exhaustive(FOLDER)])
def make_photos(request, tmp_path_factory):
    """Makes inputs of the same JPEG images, in tfds and in folders."""
    data_dir = tmp_path_factory.mktemp("data")
    if request.param == PHOTOS:
        prepare(PHOTOS, data_dir)
    else:
        write_folder(data_dir / "photo_folder")

    def make(**values):
        p = ImageClassificationInput.Params()
        p.Set(dataset=request.param, data_dir=str(data_dir), batch_size=8)
        return p.Set(**recipes.imagenet(12)).Set(**values).Instantiate()

    return make


# For what depends on how images are stored.
of_both = pytest.mark.parametrize("make_photos", [PHOTOS, FOLDER], indirect=True)


@pytest.fixture(scope="module")
def trained_on(make_photos):
    """The first batches of photos."""
    return take(make_photos().TrainBatches(), 16)


@pytest.mark.parametrize(
    ("start_step", "shuffle"),
    [(12, True), *(exhaustive(*x) for x in ((1, True), (11, True), (23, False)))],
)
def test_training_resumes_exactly(make_input, start_step, shuffle):
    values = {"shuffle": shuffle, "batch_size": 128}  # An epoch ends in the twelfth.
    whole = take(make_input(**values).TrainBatches(), 24)
    resumed = make_input(**values).TrainBatches(start_step)
    assert_same(take(resumed, 24 - start_step), whole[start_step:])


@pytest.mark.parametrize("start_step", [exhaustive(1), 4, exhaustive(13)])
def test_random_transforms_resume_exactly(make_photos, trained_on, start_step):
    resumed = make_photos().TrainBatches(start_step)
    assert_same(take(resumed, 16 - start_step), trained_on[start_step:])


@pytest.mark.parametrize("num_parallel_calls", [exhaustive(1), exhaustive(2), 5])
def test_batches_do_not_depend_on_how_much_runs_at_a_time(
    make_photos, trained_on, num_parallel_calls
):
    photos = make_photos(num_parallel_calls=num_parallel_calls)
    assert_same(take(photos.TrainBatches(), 6), trained_on[:6])


@of_both
def test_images_that_changed_since_the_checkpoint_are_told_once(
    make_photos, monkeypatch
):
    lines: list[str] = []
    monkeypatch.setattr(logging, "warning", lines.append)
    photos, fewer = make_photos(), make_photos(split="train[:30]")
    place = photos.Place(2)
    make_photos().TrainBatches(2, place)
    assert not lines
    for _ in range(2):
        fewer.TrainBatches(2, place)
    assert len(lines) == 1
    one, other = (make_photos(labels=x).Place(2) for x in ([0, 1, 2], [1, 0, 2]))
    assert one != other
    # Labels in tfds are known only if they are searched for.
    assert (place == one) == photos.params.dataset.startswith("image_folder:")


def test_examples_do_not_depend_on_the_batch_they_are_in(make_photos, trained_on):
    threes = take(make_photos(batch_size=3).TrainBatches(), 8)
    for part in ("image", "label"):
        one, other = (
            np.concatenate([batch[part] for batch in batches])
            for batches in (trained_on[:3], threes)
        )
        np.testing.assert_array_equal(one, other)


def test_random_transforms_differ_by_epoch_example_and_seed(make_photos):
    # All examples become alike, but for two dots at random places.
    cuts = [{"size": 250}, {"size": 1, "fill": 0}, {"size": 1, "fill": 1}]
    chain = [Resize.Params().Set(height=99, width=99)]
    chain += [Cutout.Params().Set(**cut) for cut in cuts]
    wide = {"train_transforms": chain, "eval_transforms": chain, "batch_size": 37}
    epochs = take(make_photos(**wide).TrainBatches(), 2)
    epochs += take(make_photos(random_seed=1, **wide).TrainBatches(), 1)
    images = [image.tobytes() for batch in epochs for image in batch.image]
    assert len(set(images)) == len(images)


def test_shuffling_does_not_change_what_becomes_of_an_example(make_photos):
    shuffled, ordered = (
        take(make_photos(shuffle=shuffle, batch_size=37).TrainBatches(), 1)[0]
        for shuffle in (True, False)
    )
    images = [sorted(map(bytes, batch.image)) for batch in (shuffled, ordered)]
    assert images[0] == images[1]
    assert not np.array_equal(shuffled.image, ordered.image)


def test_digits_never_change(make_input):
    # Other bytes here would break every run that is resumed.
    train, test = make_input(), make_input(split="test")
    assert digest_of(take(train.TrainBatches(21), 4)) == "5bf682ea04c3df96"
    assert digest_of(take(test.EvalBatches(), 9)) == "d1998d53e2684ee0"


def test_unshuffled_training_begins_like_evaluation(make_input):
    ordered = make_input(shuffle=False)
    assert_same(take(ordered.TrainBatches(), 3), take(ordered.EvalBatches(), 3))


def test_seeds_choose_the_order(make_input):
    last = 2**64 - 1
    (one,), (same,), (other,), (far,) = (
        take(make_input(random_seed=seed).TrainBatches(), 1) for seed in (1, 1, 2, last)
    )
    assert_same([one], [same])
    assert not np.array_equal(one.label, other.label)
    assert not np.array_equal(far.label, other.label)


@pytest.mark.parametrize("batch_size", [1, 64, 359, 400])
def test_evaluation_is_one_pass_padded_with_weight_zero(make_input, batch_size):
    test = make_input(split="test", batch_size=batch_size)
    batches = take(test.EvalBatches(), 1000)
    assert len(batches) == test.num_batches == test.EvalBatches().cardinality().numpy()
    weights = np.concatenate([batch.weight for batch in batches])
    assert weights.tolist() == [1] * 359 + [0] * (len(batches) * batch_size - 359)
    source = tfds.builder("optdigits", data_dir=test.params.data_dir).as_data_source(
        "test"
    )
    labels = np.concatenate([batch.label for batch in batches])[weights == 1]
    assert labels.tolist() == [example["label"] for example in source]
    images = np.concatenate([batch.image for batch in batches])[weights == 1]
    pixels = np.stack([example["image"] for example in source])
    np.testing.assert_array_equal(images, pixels / np.float32(16))
    assert (images.min(), images.max()) == (0, 1)


@of_both
def test_evaluation_is_the_same_each_time_and_holds_all(make_photos):
    photos = make_photos(split="test")
    batches = take(photos.EvalBatches(), 10)
    assert_same(take(photos.EvalBatches(), 10), batches)
    images = np.concatenate([b.image for b in batches])
    assert len({image.tobytes() for image in images}) == SIZES["test"]
    labels = np.concatenate([b.label for b in batches])[: SIZES["test"]]
    assert np.bincount(labels).tolist() == [4, 3, 3]


def test_training_and_evaluation_have_transforms_of_their_own(make_input):
    # Values from 0 to 1 become values from -1 to 1.
    normalize = [Normalization.Params()]
    for name, ranges in {"train": (-1, 0), "eval": (0, -1)}.items():
        digits = make_input(**{f"{name}_transforms": normalize})
        batches = digits.TrainBatches(), digits.EvalBatches()
        assert tuple(take(b, 1)[0].image.min() for b in batches) == ranges


@pytest.mark.parametrize("method", ["TrainBatches", "EvalBatches"])
def test_batches_are_nested_maps_as_announced(make_input, method):
    digits = make_input(batch_size=32)
    assert (digits.image_shape, digits.num_classes) == ((8, 8, 1), 10)
    assert digits.num_batches == 45
    batches = getattr(digits, method)()
    assert batches.element_spec == digits.element_spec
    batch = next(iter(batches))
    assert isinstance(batch, NestedMap)
    assert batch.Transform(tf.TensorSpec.from_tensor) == digits.element_spec


def test_images_of_many_sizes_come_out_alike(make_photos):
    photos = make_photos(**recipes.transfer(10))
    assert photos.image_shape == (10, 10, 3)
    assert photos.class_names == CLASSES
    for batches in (photos.TrainBatches(), photos.EvalBatches()):
        assert batches.element_spec == photos.element_spec


@pytest.mark.parametrize("pixel_max", [255, 254.5])
def test_pixels_are_divided_as_numpy_divides(tmp_path, pixel_max):
    for value in range(255):
        folder = tmp_path / "train" / f"{value:03}"
        folder.mkdir(parents=True)
        png = tf.io.encode_png(np.full([1, 1, 3], value, np.uint8))
        (folder / "0.png").write_bytes(png.numpy())
    p = ImageClassificationInput.Params()
    p.Set(dataset=f"image_folder:{tmp_path}", batch_size=255, pixel_max=pixel_max)
    p.train_transforms = p.eval_transforms = [Resize.Params().Set(height=1, width=1)]
    (batch,) = take(p.Instantiate().EvalBatches(), 1)
    expected = batch.label.astype(np.float32) / np.float32(pixel_max)
    np.testing.assert_array_equal(batch.image[:, 0, 0, 0], expected)


def test_two_passes_of_one_dataset_are_the_same(make_input):
    batches = make_input().TrainBatches(7)
    assert_same(take(batches, 3), take(batches, 3))


def test_labels_choose_examples_and_renumber_them(make_input):
    (whole,) = take(make_input(split="test", batch_size=359).EvalBatches(), 1)
    labels = [7, 5, 9]
    part = make_input(split="test", labels=labels, batch_size=10)
    batches = take(part.EvalBatches(), 100)
    images, found, weights = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("image", "label", "weight")
    )
    is_kept = np.isin(whole.label, labels)
    np.testing.assert_array_equal(images[weights == 1], whole.image[is_kept])
    old = np.array(labels)[found[weights == 1]]
    np.testing.assert_array_equal(old, whole.label[is_kept])
    assert (part.num_examples, part.num_classes) == (is_kept.sum(), 3)
    assert part.class_names == ["7", "5", "9"]


def test_a_model_can_be_shown_without_the_data(tmp_path):
    for dataset in ("imagenet2012", "image_folder:fgvc_aircraft"):
        name = dataset.rpartition(":")[2]
        p = ImageClassificationInput.Params()
        p.Set(dataset=dataset, data_dir=str(tmp_path), batch_size=4)
        data = p.Set(**recipes.imagenet(32)).Instantiate()
        assert data.element_spec.image == tf.TensorSpec([4, 32, 32, 3], tf.float32)
        for batches in (data.TrainBatches, data.EvalBatches):
            with fails(path="dataset") as info:
                batches()
            assert f"/{name}" in info.value.got
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "path", "got"),
    [
        ({"pixel_max": 15}, "input.pixel_max", 15),
        ({"split": "tests"}, "split", "tests"),
        ({"labels": [3, 10]}, "input.labels", [3, 10]),
        ({"num_logits": 9}, "input.num_logits", 9),
        ({"num_logits": 1, "labels": [3, 2]}, "input.num_logits", 1),
        ({"split": "train[:2]", "labels": [9]}, "input.labels", [9]),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_the_first_batch(
    make_input, values, path, got
):
    digits = make_input(**values)
    for batches in (digits.TrainBatches, digits.EvalBatches):
        with fails(path=path, got=got):
            batches()


@pytest.mark.parametrize(
    "values", [{"num_logits": 10}, {"num_logits": 11}, {"num_logits": 1, "labels": [9]}]
)
def test_a_model_may_tell_more_classes_apart(make_input, values):
    assert len(take(make_input(**values).EvalBatches(), 1)) == 1


def test_steps_and_batches_of_training_out_of_range_are_refused(make_input):
    with fails(path="start_step", got=-1):
        make_input().TrainBatches(-1)
    with fails(path="input.batch_size", got=360):
        make_input(split="test", batch_size=360).TrainBatches()
