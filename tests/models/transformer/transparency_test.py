"""Training a translation model gives the same bytes for every split and schedule.

Encoder and decoder with dropout 0.1 everywhere, label smoothing and tied embeddings.
Compared are all weights and slots after two steps, with those of one stage that
recomputes nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.optim.keras_optimizer import OptimizerParams
from lingvo_pipe.training.step.train_step import TrainStep
from tests.models.transformer.small_models import (
    sentences,
    small_layer,
    translation_batch,
    translation_task,
)

# From schedule and number of devices to the recomputed cells.
WAYS: dict[str, dict[int, Any]] = {
    "gpipe": {2: "never", 3: "always", 4: "except_last"},
    "1f1b": {1: "always", 2: [1, 3], 3: "except_last", 4: "never"},
    "interleaved": {1: "except_last", 2: "always", 3: [0, 5]},
    "zero_bubble": {1: None, 2: None, 4: None},
}
RUNS = [
    (schedule, num_devices, recompute)
    for schedule, by_devices in WAYS.items()
    for num_devices, recompute in by_devices.items()
]


def _batch(seed: int) -> NestedMap:
    """Returns eight rows, the first of two packed pairs."""
    sources = sentences([2, 3, 1, 5, 4, 2, 5, 3, 4], seed)
    targets = sentences([3, 2, 4, 1, 5, 3, 2, 5, 4], seed + 100)

    def rows(found: list) -> list:
        return [found[:2], *[[sentence] for sentence in found[2:]]]

    return translation_batch(rows(sources), rows(targets), 5, 6)


def _trained_bytes(**pipeline: Any) -> dict[str, bytes]:
    # Norms behind and no biases: fewer kinds of layers, and of weights, to build.
    layer = small_layer(norm_first=False)
    for part in (layer.attention_tpl, layer.feed_forward_tpl):
        part.Set(keep_prob=0.9, has_bias=False)
    p = translation_task(tied=True, dropout_prob=0.1, layer_tpl=layer)
    p.pipeline.Set(num_micro_batches=4, **pipeline)
    p.train.Set(
        learning_rate=0.05,
        optimizer=OptimizerParams("SGD", momentum=0.9),
        clip_gradient_norm_to_value=1.0,
    )
    step = TrainStep(p.Instantiate())
    for seed in range(2):
        step(_batch(seed))
    return {path: v.numpy().tobytes() for path, v in step.State().items()}


@functools.cache
def _one_stage() -> dict[str, bytes]:
    return _trained_bytes(splits=1, recompute="never")


# tests/training/slices_test.py trains such a model in the fast suite.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("schedule", "num_devices", "recompute"), RUNS)
def test_training_leaves_the_bytes_of_one_stage(
    schedule: str, num_devices: int, recompute: Any
) -> None:
    a_device = 2 if schedule == "interleaved" else 1
    found = _trained_bytes(
        splits=num_devices * a_device,
        schedule=schedule,
        stages_per_device=a_device,
        recompute=recompute,
    )
    want = _one_stage()
    assert found.keys() == want.keys(), "paths know nothing of stages"
    assert [path for path in want if found[path] != want[path]] == []
