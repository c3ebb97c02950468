"""A run that is trained block by block is used as the plain model's would be.

Shapes: B examples, D channels, N classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.cli import model_request
from lingvo_pipe.cli.inspect_jobs import inspect_model
from lingvo_pipe.cli.model_request import ModelRequest
from lingvo_pipe.cli.train_job import train_model
from lingvo_pipe.cli.use_jobs import RunUse, evaluate_data_set, export_trained
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.task.single_task_model_params import SingleTaskModelParams
from tests.support.command_line import saved_variables
from tests.support.errors import fails

BATCH, DIM, CLASSES, STEPS = 4, 3, 2, 3
SCHEME = "task.local.scheme : 'greedy'"


class PointsInput:
    """The same few points in every batch."""

    def __init__(self, params: InstantiableParams):
        self.params = params
        draw = np.random.default_rng(0)
        self._batch = NestedMap(
            image=draw.normal(size=[BATCH, DIM]).astype(np.float32),
            label=draw.integers(CLASSES, size=BATCH).astype(np.int32),
            weight=np.ones([BATCH], np.float32),
        )
        self.element_spec = tf.nest.map_structure(
            lambda x: tf.TensorSpec(x.shape, x.dtype), self._batch
        )

    @classmethod
    def Params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.Define("batch_size", BATCH, "B.")
        return p

    def TrainBatches(self, start_step: int = 0) -> Any:
        batches = tf.data.Dataset.from_tensors(self._batch)
        return batches.repeat(STEPS).skip(start_step)

    def EvalBatches(self) -> Any:
        return tf.data.Dataset.from_tensors(self._batch)


@model_registry.RegisterSingleTaskModel
class Points(SingleTaskModelParams):
    """Three layers."""

    def Train(self) -> InstantiableParams:
        return PointsInput.Params()

    def Test(self) -> InstantiableParams:
        return PointsInput.Params()

    def Task(self) -> InstantiableParams:
        p = ImageClassifier.Params()
        sizes = [(DIM, 5), (5, 5), (5, CLASSES)]
        p.pipeline.Set(
            cell_tpl=[
                FCLayer.Params().Set(input_dim=i, output_dim=o) for i, o in sizes
            ],
            num_micro_batches=2,
        )
        p.train.Set(max_steps=STEPS, learning_rate=0.1)
        p.eval.images = False
        return p


def _request(override: str = SCHEME) -> ModelRequest:
    (name,) = (
        n for n in model_registry.ListModels() if n.endswith("local_jobs_test.Points")
    )
    return ModelRequest(name, override=override)


@pytest.fixture(scope="module", autouse=True)
def any_device() -> Iterator[None]:
    """TensorFlow may have run in this process, with other devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_request, "initialize_devices", lambda *unused: ["cpu:0"])
        yield


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of the greedy scheme."""
    path = tmp_path_factory.mktemp("runs") / "greedy"
    assert train_model(_request(), str(path)) is True
    return path


def test_params_tell_the_scheme_and_the_plain_cells(logdir: Path) -> None:
    text = (logdir / "params.txt").read_text(encoding="utf-8")
    assert "task.local.scheme : 'greedy'" in text
    assert "LocalLossLayer" not in text
    found = read_metrics(logdir)
    assert any("local_1_loss" in str(line) for line in found)


def test_the_same_command_again_changes_nothing(logdir: Path) -> None:
    before = read_metrics(logdir), saved_variables(logdir, STEPS)
    assert train_model(_request(), str(logdir)) is True
    assert (read_metrics(logdir), saved_variables(logdir, STEPS)) == before


@pytest.mark.parametrize("override", [SCHEME, ""])
def test_it_is_evaluated_without_heads(logdir: Path, override: str) -> None:
    """The plain model's params are those of another way to train."""
    before = read_metrics(logdir)
    evaluate_data_set(_request(override), RunUse(str(logdir), "Test"))
    assert any("/head/" in name for name in saved_variables(logdir, STEPS))
    assert read_metrics(logdir) == before


@pytest.mark.parametrize("override", [SCHEME, ""])
def test_what_is_exported_has_the_plain_models_weights(
    logdir: Path, override: str
) -> None:
    export_trained(_request(override), RunUse(str(logdir), "Test"))
    (path,) = (logdir / "export").iterdir()
    names = {
        name
        for name, _ in tf.train.list_variables(str(path / "variables" / "variables"))
    }
    module = tf.saved_model.load(str(path))
    shapes = [tuple(v.shape) for v in module.model_variables]
    assert sorted(shapes) == sorted(
        [(DIM, 5), (5,), (5, 5), (5,), (5, CLASSES), (CLASSES,)]
    )
    assert not any("head" in name for name in names)


def test_another_scheme_is_a_change_of_params(logdir: Path) -> None:
    with fails(path="task.local.scheme"):
        train_model(_request(""), str(logdir))


def test_heads_are_shown() -> None:
    text = inspect_model(_request())
    for part in ("local_0", "local_1", "LocalLossLayer", "head/w", "bubble: "):
        assert part in text
    assert re.search(r"\nbubble: [\d.]+%", text)
    assert "LocalLossLayer" not in inspect_model(_request(""))
