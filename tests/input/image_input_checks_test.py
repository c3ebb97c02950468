"""Params of an image input: what is wrong is told, without any data."""

import pytest

from lingvo_pipe.input.image_input import ImageClassificationInput
from lingvo_pipe.input.transforms.central_crop import CentralCrop
from lingvo_pipe.input.transforms.color_distortion import ColorDistortion
from lingvo_pipe.input.transforms.resize import Resize

SMALL, LARGE = (Resize.Params().Set(height=n, width=n) for n in (4, 16))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": None}, "batch_size must be a positive int; got None"),
        ({"batch_size": 0}, "batch_size must be a positive int; got 0"),
        ({"batch_size": -3}, "batch_size must be a positive int; got -3"),
        ({"random_seed": -1}, r"random_seed must be an int .* got -1"),
        ({"random_seed": 2**64}, r"random_seed must be an int .* got 18446744"),
        ({"random_seed": None}, r"random_seed must be an int .* got None"),
        ({"pixel_max": 0}, "pixel_max must be a positive number; got 0"),
        ({"pixel_max": None}, "pixel_max must be a positive number; got None"),
        ({"batch_size": 0, "pixel_max": -1}, "batch_size .*; pixel_max .* Set them"),
        ({"num_parallel_calls": 0}, "num_parallel_calls must be .* None; got 0"),
        ({"labels": []}, r"labels must be a list of different ints .* got \[\]"),
        ({"labels": [1, 1]}, r"labels must be .* got \[1, 1\]"),
        ({"labels": [-1]}, r"labels must be .* got \[-1\]"),
        ({"labels": 3}, r"labels must be .* got 3"),
        ({"num_logits": 0}, "num_logits must be a positive int or None; got 0"),
        ({"dataset": None}, "dataset must be a name; got None"),
        ({"split": None}, "split must be a name; got None"),
        ({"dataset": "optdigit"}, "Did you mean 'optdigits'"),
        ({"train_transforms": None}, "train_transforms must be a list; got None"),
        ({"eval_transforms": ["crop"]}, "params of sub-classes .* got 'crop'"),
        ({"eval_transforms": [SMALL]}, r"got \(8, 8, 1\) and \(4, 4, 1\). End both"),
        (
            {"train_transforms": [SMALL], "eval_transforms": [LARGE]},
            r"must make all images alike, .* got \(4, 4, 1\) and \(16, 16, 1\)",
        ),
        (
            {"dataset": "food101", "eval_transforms": [CentralCrop.Params()]},
            r"got \(None, None, 3\) and \(None, None, 3\). End both with a Resize",
        ),
        (
            {"train_transforms": [ColorDistortion.Params()]},
            "ColorDistortion needs images of 3 channels",
        ),
    ],
)
def test_faulty_params_are_refused(values, message):
    p = ImageClassificationInput.Params().Set(batch_size=64, pixel_max=16)
    with pytest.raises(ValueError, match=message):
        p.Set(**values).Instantiate()
