"""Images of evaluations get each batch, and appear in TensorBoard's events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.convolution import GlobalAveragePoolingLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.eval.evaluation import Evaluation
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.training.toy_run import CLASSES, Input, batch, events

STEPS = 4


def _images(seed: int, num_padding: int = 0) -> NestedMap:
    found = batch(seed, num_padding=num_padding)
    random = np.random.default_rng(seed)
    found.image = random.normal(size=[len(found.label), 3, 3, 5]).astype(np.float32)
    return found


def _task(**eval_params: Any) -> InstantiableParams:
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.Set(
        cell_tpl=[
            GlobalAveragePoolingLayer.Params(),
            FCLayer.Params().Set(input_dim=5, output_dim=CLASSES),
        ],
        splits=2,
        num_micro_batches=2,
    )
    p.train.Set(learning_rate=0.1, max_steps=STEPS)
    p.eval.Set(interval_steps=2, **eval_params)
    return p


class Notes:
    """Images that record their batches."""

    def __init__(self) -> None:
        self.seen: list[tuple[NestedMap, np.ndarray]] = []

    def Add(self, input_batch: NestedMap, predictions: Any) -> None:
        self.seen.append((input_batch, predictions.numpy()))

    def Draw(self) -> dict[str, bytes]:
        return {}


def test_each_batch_is_added_with_its_predictions() -> None:
    task, notes = _task().Instantiate(), Notes()
    batches = [_images(seed) for seed in range(3)]
    evaluation = Evaluation(task)
    assert evaluation(batches, notes) == evaluation(batches)
    assert len(notes.seen) == len(batches)
    for given, (seen, logits) in zip(batches, notes.seen, strict=True):
        assert seen is given
        with ForwardContext(do_eval=True):
            want = task.ComputePredictions(task.theta, given)
        np.testing.assert_array_equal(logits, want)


class NamedInput(Input):
    """An input whose classes have names."""

    class_names = ["ant", "bee"]


def _events(logdir: Path) -> dict[tuple[str, int], list[bytes]]:
    """Returns the images in the events by tag and step."""
    images = events(logdir / "test", "images")
    return {(tag, step): image.tolist() for step, tag, image in images}


def _train(logdir: Path, task: Any, data: Input) -> dict[str, float]:
    test = NamedInput(_images(9), _images(10, num_padding=1))
    directory = RunDirectory(logdir, "toy.Toy")
    return train(task, data, test, directory, "task.name : 'task'\n", lambda _: None)


@pytest.fixture(name="data", scope="module")
def _data() -> Input:
    return Input(*map(_images, range(STEPS)))


Trained = tuple[Path, Any, dict[str, float]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data: Input) -> Trained:
    """A finished run's directory, task and metrics."""
    logdir, task = tmp_path_factory.mktemp("trained"), _task().Instantiate()
    return logdir, task, _train(logdir, task, data)


@pytest.mark.exhaustive
def test_images_are_in_the_events_after_each_evaluation(trained: Trained) -> None:
    logdir, task, _ = trained
    written = _events(logdir)
    kinds = ("images", "confusion")
    assert set(written) == {(kind, step) for kind in kinds for step in (2, STEPS)}
    assert "<figcaption>confusion" in (logdir / "report.html").read_text()
    for width, height, image in written.values():
        shape = tf.io.decode_png(image).shape
        assert (int(height), int(width)) == tuple(shape[:2])
    # Drawing the trained task again gives the same bytes.
    test = NamedInput(_images(9), _images(10, num_padding=1))
    images = task.MakeEvalImages(test)
    Evaluation(task)(test.EvalBatches(), images)
    drawn = images.Draw()
    assert {kind: written[kind, STEPS][2] for kind in kinds} == drawn
    unnamed = task.MakeEvalImages(Input(_images(9)))
    Evaluation(task)(test.EvalBatches(), unnamed)
    assert unnamed.Draw() != drawn


@pytest.mark.exhaustive
def test_a_complete_run_adds_no_images(trained: Trained, data: Input) -> None:
    logdir, *_ = trained
    before = _events(logdir)
    _train(logdir, _task().Instantiate(), data)
    assert _events(logdir) == before


@pytest.mark.exhaustive
def test_metrics_are_the_same_without_images(
    tmp_path: Path, trained: Trained, data: Input
) -> None:
    *_, metrics = trained
    assert _train(tmp_path, _task(images=False).Instantiate(), data) == metrics
    assert not _events(tmp_path)
