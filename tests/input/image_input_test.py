"""Image batches: exact resumption, one pass for evaluation, faults told."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from lingvo_pipe.input.image_input import ImageClassificationInput
from lingvo_pipe.nested_map import NestedMap


@pytest.fixture(scope="module")
def make_input(tmp_path_factory):
    """Makes inputs of the embedded digits, which are prepared once."""
    data_dir = str(tmp_path_factory.mktemp("data"))

    def make(**values):
        p = ImageClassificationInput.Params()
        p.Set(data_dir=data_dir, batch_size=64, pixel_max=16)
        return p.Set(**values).Instantiate()

    return make


def take(batches, number):
    return [NestedMap(batch).Transform(np.asarray) for batch in batches.take(number)]


def assert_same(batches, others):
    assert len(batches) == len(others) > 0
    for batch, other in zip(batches, others, strict=True):
        for (key, value), (other_key, other_value) in zip(
            batch.FlattenItems(), other.FlattenItems(), strict=True
        ):
            assert key == other_key
            np.testing.assert_array_equal(value, other_value)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("start_step", [0, 1, 22, 25, 48])
def test_training_resumes_exactly(make_input, start_step, shuffle):
    whole = take(make_input(shuffle=shuffle).TrainBatches(), 50)
    resumed = make_input(shuffle=shuffle).TrainBatches(start_step)
    assert_same(take(resumed, 50 - start_step), whole[start_step:])


def test_training_reads_each_example_once_an_epoch(make_input):
    train = make_input(batch_size=719)
    assert train.num_examples == 2 * 719
    first, second = take(train.TrainBatches(), 2)
    whole = np.concatenate([first.image, second.image])
    (evaluated,) = take(make_input(batch_size=1438).EvalBatches(), 1)
    assert sorted(map(bytes, whole)) == sorted(map(bytes, evaluated.image))
    assert not np.array_equal(whole, evaluated.image)


def test_unshuffled_training_begins_like_evaluation(make_input):
    ordered = make_input(shuffle=False)
    assert_same(take(ordered.TrainBatches(), 3), take(ordered.EvalBatches(), 3))


def test_seeds_choose_the_order(make_input):
    (one,), (same,), (other,) = (
        take(make_input(random_seed=seed).TrainBatches(), 1) for seed in (1, 1, 2)
    )
    assert_same([one], [same])
    assert not np.array_equal(one.label, other.label)


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


def test_a_part_of_a_split_can_be_read(make_input):
    assert make_input(split="train[:100]").num_examples == 100


def test_two_passes_of_one_dataset_are_the_same(make_input):
    batches = make_input().TrainBatches(7)
    assert_same(take(batches, 3), take(batches, 3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": None}, "batch_size must be a positive int; got None"),
        ({"batch_size": 0}, "batch_size must be a positive int; got 0"),
        ({"batch_size": -3}, "batch_size must be a positive int; got -3"),
        ({"random_seed": -1}, r"random_seed must be an int .* got -1"),
        ({"random_seed": None}, r"random_seed must be an int .* got None"),
        ({"pixel_max": 0}, "pixel_max must be a positive number; got 0"),
        ({"pixel_max": None}, "pixel_max must be a positive number; got None"),
        ({"pixel_max": 15}, "brightest pixel of optdigits, 16; got 15. Set .*=16"),
        ({"batch_size": 0, "pixel_max": -1}, "batch_size .*; pixel_max .* Set them"),
        ({"dataset": "optdigit"}, "Did you mean 'optdigits'"),
        ({"split": "tests"}, "got 'tests', .* Did you mean 'test'"),
    ],
)
def test_faulty_params_are_refused(make_input, values, message):
    with pytest.raises(ValueError, match=message):
        make_input(**values)


def test_faulty_steps_and_batches_of_training_are_refused(make_input):
    with pytest.raises(ValueError, match="start_step must not be negative; got -1"):
        make_input().TrainBatches(-1)
    with pytest.raises(ValueError, match="exceed the 359 examples .* got 360. Set"):
        make_input(split="test", batch_size=360).TrainBatches()


class Sentences(tfds.core.GeneratorBasedBuilder):
    """A data set of something else than images."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "text": tfds.features.Text(),
            "label": tfds.features.Scalar(np.int64),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"text": "a", "label": 0}


def test_a_data_set_without_images_is_refused(make_input, tmp_path):
    with pytest.raises(ValueError, match="images .* got 'sentences' with label .*text"):
        make_input(dataset="sentences", data_dir=str(tmp_path))


def test_training_goes_on_without_end(make_input):
    digits = make_input(split="train[:8]", batch_size=8)
    batches = list(itertools.islice(digits.TrainBatches(), 40))
    assert len(batches) == 40
