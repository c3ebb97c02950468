"""A run resumed with other stages or another schedule has the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.hyperparams import InstantiableParams, Params
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.loop.training_loop import train
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.run.metrics_log import read_metrics
from lingvo_pipe.training.run.run_directory import RunDirectory
from tests.models.transformer.small_models import (
    sentences,
    translation_batch,
    translation_task,
)
from tests.support.cases import exhaustive
from tests.training.toy_models import BATCH, CLASSES, Batches, Model, image_batch
from tests.training.toy_run import published_params, resumed_steps, saved_bytes

NUM_MICRO_BATCHES = 4
# Number of steps before the stop, and in all.
STOPPED, STEPS = 3, 8


def _image_params() -> InstantiableParams:
    """Returns params of eight cells with batch norm, dropout, RMSprop and averages."""
    p = published_params()
    mid = [
        BatchNormLayer.Params().Set(dim=5, decay=0.5),
        DropoutLayer.Params().Set(keep_prob=0.8),
        FCLayer.Params().Set(input_dim=5, output_dim=5, activation="RELU"),
    ]
    p.pipeline.cell_tpl = [
        FCLayer.Params().Set(input_dim=3, output_dim=5),
        *mid,
        *mid,
        FCLayer.Params().Set(input_dim=5, output_dim=CLASSES),
    ]
    return p


def _translation_params() -> InstantiableParams:
    """Returns params of nine cells with dropout, tied embeddings and momentum."""
    p = translation_task(tied=True, num_layers=3, dropout_prob=0.1)
    optimizer = OptimizerParams("SGD", momentum=0.9)
    p.train.Set(learning_rate=0.1, optimizer=optimizer)
    return p


def _translation_batch(step: int) -> NestedMap:
    """Returns a batch with two pairs of sentences in each row."""
    lengths = [i % 3 + 1 for i in range(2 * BATCH)]
    sources, targets = (_in_pairs(sentences(lengths, 2 * step + i)) for i in range(2))
    return translation_batch(sources, targets)


def _in_pairs(found: list[list[int]]) -> list[list[list[int]]]:
    return [found[i : i + 2] for i in range(0, len(found), 2)]


MODELS = {
    "image": Model(_image_params, image_batch),
    "translation": Model(_translation_params, _translation_batch),
}


def _train(name: str, logdir: Path, **pipeline: Any) -> list[str]:
    """Trains to the last step, saves every step, and returns the log."""
    model = Params()
    model.Define("task", MODELS[name].make_params(), "")
    p = model.task
    p.pipeline.Set(num_micro_batches=NUM_MICRO_BATCHES, **pipeline)
    p.train.Set(max_steps=STEPS, save_interval_steps=1, keep_checkpoints=STEPS)
    data, logged = Batches(MODELS[name].make_batch, STEPS), list[str]()
    directory = RunDirectory(logdir, name)
    train(p.Instantiate(), data, data, directory, model.ToText(), logged.append)
    return logged


@pytest.fixture(scope="module", params=["image", exhaustive("translation")])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """An uninterrupted run of a model in four stages."""
    logdir = tmp_path_factory.mktemp(name) / "whole"
    _train(name, logdir, splits=4, schedule="gpipe")
    return logdir


@pytest.mark.parametrize(
    "pipeline",
    [
        exhaustive({"splits": 1}),
        exhaustive({"splits": 2}),
        {"splits": 8},
        {"splits": 4, "schedule": "1f1b", "recompute": "never"},
    ],
    ids=["1", "2", "8", "1f1b"],
)
def test_resumed_steps_equal_the_uninterrupted_runs(
    tmp_path: Path, name: str, whole: Path, pipeline: dict[str, Any]
) -> None:
    logdir = shutil.copytree(whole, tmp_path / "resumed")
    for step in range(STOPPED + 1, STEPS + 1):
        for path in (logdir / "checkpoints").glob(f"ckpt-{step:08d}*"):
            path.unlink()
    logged = _train(name, logdir, **pipeline)
    assert resumed_steps(logged) == [STOPPED]
    assert f"stages: {pipeline['splits']} " in logged[0]
    before = saved_bytes(whole, STOPPED)
    for step in range(STOPPED + 1, STEPS + 1):
        expected = saved_bytes(whole, step)
        assert any(expected[path] != before[path] for path in expected)
        assert saved_bytes(logdir, step) == expected
    assert read_metrics(logdir) == read_metrics(whole)
