"""The names of a trained model's classes; test_loaded_models.py loads whole runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lingvo_pipe.core.errors import UserNumberError
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.serving.trained_model import TrainedModel, _classification
from lingvo_pipe.training.run.run_classes import write_class_names
from tests.support.errors import fails

PROBABILITIES = np.array([0.2, 0.3, 0.5], np.float32)


@pytest.mark.parametrize(
    ("names", "name"), [(["a", "b", "c"], "c"), (["a", "b"], "2"), ([], "2")]
)
def test_outputs_without_a_name_have_a_number(names: list[str], name: str) -> None:
    """The published models of ImageNet have an output more than classes."""
    assert _classification(PROBABILITIES, names, 0)[:2] == (2, name)


def test_more_names_than_outputs_are_refused() -> None:
    with fails(path="input.dataset", got=4):
        _classification(PROBABILITIES, ["a", "b", "c", "d"], 0)


def test_probabilities_that_are_not_finite_are_refused() -> None:
    with fails(UserNumberError, path="score") as info:
        _classification(np.append(PROBABILITIES, np.float32("nan")), [], 7)
    assert "images[7]" in info.value.expected


def test_names_are_those_of_training(tmp_path: Path) -> None:
    """Also if the data set is missing, or has others now."""
    p = ImageClassificationInput.Params()
    p.Set(dataset="no_photos", data_dir=str(tmp_path), batch_size=1, image_size=8)
    directory: Any = SimpleNamespace(path=tmp_path, model_name="toy.Toy")
    task: Any = None
    model = TrainedModel(directory, 1, task, p)
    with fails(path="dataset", got="no_photos"):
        model._data  # noqa: B018
    write_class_names(tmp_path, SimpleNamespace(class_names=["bee", "cat"]))
    assert model._class_names == ["bee", "cat"]
    # The images may be absent.
    assert model._data.image_shape == (8, 8, 3)
