"""Params of an image input: problems are named without any data."""

import pytest

from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.transforms.colors import ColorDistortion
from lingvo_pipe.input.transforms.geometry import CentralCrop, Resize

SMALL, LARGE = (Resize.Params().Set(height=n, width=n) for n in (4, 16))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"batch_size": None}, "batch_size.*None"),
        ({"batch_size": 0}, r"batch_size.*\b0\b"),
        ({"batch_size": -3}, "batch_size.*-3"),
        ({"random_seed": -1}, r"random_seed.*2\*\*64.*-1\b"),
        ({"random_seed": 2**64}, r"random_seed.*2\*\*64.*18446744"),
        ({"random_seed": None}, r"random_seed.*2\*\*64.*None"),
        ({"pixel_max": 0}, r"pixel_max.*\b0\b"),
        ({"pixel_max": "255"}, "pixel_max.*'255'"),
        ({"image_size": 0}, r"image_size.*None.*\b0\b"),
        ({"image_size": [8]}, r"image_size.*\[8\]"),
        ({"image_size": [8, 0]}, r"image_size.*\[8, 0\]"),
        ({"channels": 4}, r"channels.*\b1, 3\b.*\b4\b"),
        (
            {"batch_size": 0, "pixel_max": -1},
            r"batch_size.*\b0\b.*pixel_max.*-1.*ImageClassificationInput",
        ),
        ({"num_parallel_calls": 0}, r"num_parallel_calls.*None.*\b0\b"),
        ({"labels": []}, r"labels.*\[\]"),
        ({"labels": [1, 1]}, r"labels.*\[1, 1\]"),
        ({"labels": [-1]}, r"labels.*\[-1\]"),
        ({"labels": 3}, r"labels.*\b3\b"),
        ({"num_logits": 0}, r"num_logits.*None.*\b0\b"),
        ({"dataset": None}, "dataset.*None"),
        ({"split": None}, "split.*None"),
        ({"dataset": "optdigit"}, "dataset.*'optdigit'.*'optdigits'"),
        ({"train_transforms": None}, "train_transforms.*None"),
        ({"eval_transforms": ["crop"]}, "ImageTransform.*'crop'"),
        ({"eval_transforms": [SMALL]}, r"eval_transforms.*\(8, 8, 1\).*\(4, 4, 1\)"),
        (
            {"train_transforms": [SMALL], "eval_transforms": [LARGE]},
            r"train_transforms.*eval_transforms.*\(4, 4, 1\).*\(16, 16, 1\)",
        ),
        (
            {"dataset": "food101", "eval_transforms": [CentralCrop.Params()]},
            r"_transforms.*\(None, None, 3\).*\(None, None, 3\).*\bResize\b",
        ),
        (
            {"train_transforms": [ColorDistortion.Params()]},
            r"ColorDistortion.*\b3\b.*\b1\b",
        ),
        (
            {"image_size": 8, "train_transforms": [SMALL], "eval_transforms": [SMALL]},
            r"image_size.*\[4, 4\].*\[8, 8\]",
        ),
    ],
)
def test_params_out_of_range_are_refused(values, message):
    p = ImageClassificationInput.Params().Set(batch_size=64, pixel_max=16)
    with pytest.raises(ValueError, match=message):
        p.Set(**values).Instantiate()
