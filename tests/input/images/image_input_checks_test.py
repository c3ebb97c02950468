"""Params of an image input: problems are named without any data."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.input.transforms.colors import ColorDistortion
from lingvo_pipe.input.transforms.geometry import CentralCrop, Resize
from tests.support.errors import fails

SMALL = Resize.Params().Set(height=4, width=4)


def _input(**values: Any) -> Any:
    p = ImageClassificationInput.Params().Set(batch_size=64, pixel_max=16)
    return p.Set(**values).Instantiate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("batch_size", x) for x in (None, 0, 2.5)],
        *[("random_seed", x) for x in (-1, 2**64, None)],
        *[("pixel_max", x) for x in (0, "255")],
        *[("image_size", x) for x in (0, [8], [8, 0])],
        *[("channels", 4), ("num_parallel_calls", 0), ("num_logits", 0)],
        *[("labels", x) for x in ([], [1, 1], [-1], 3)],
        *[("dataset", None), ("split", None), ("train_transforms", None)],
    ],
)
def test_params_out_of_range_are_refused(name: str, value: Any) -> None:
    with fails(path=f"ImageClassificationInput.{name}", got=value):
        _input(**{name: value})


def test_all_problems_are_named() -> None:
    with fails() as info:
        _input(batch_size=0, pixel_max=-1)
    assert [x.got for x in info.value.problems] == [0, -1]


BOTH = "input.train_transforms and input.eval_transforms"
ANY = (None, None, 3)


@pytest.mark.parametrize(
    ("values", "path", "got"),
    [
        ({"dataset": "optdigit"}, "dataset", "optdigit"),
        (
            {"eval_transforms": ["crop"]},
            "input.train_transforms, input.eval_transforms",
            "crop",
        ),
        ({"eval_transforms": [SMALL]}, BOTH, ((8, 8, 1), (4, 4, 1))),
        (
            {"dataset": "food101", "eval_transforms": [CentralCrop.Params()]},
            BOTH,
            (ANY, ANY),
        ),
        ({"train_transforms": [ColorDistortion.Params()]}, "ColorDistortion", 1),
        (
            {"image_size": 8, "train_transforms": [SMALL], "eval_transforms": [SMALL]},
            "input.image_size",
            [8, 8],
        ),
    ],
)
def test_params_that_do_not_fit_are_refused(
    values: dict[str, Any], path: str, got: Any
) -> None:
    with fails(path=path, got=got):
        _input(**values)
