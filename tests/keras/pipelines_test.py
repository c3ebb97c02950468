"""Stages of PipelinedModel: replicas, and stages chosen by costs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from lingvo_pipe.keras.cells.model_cells import model_cells
from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from tests.keras.toy_models import assert_same, fit, sequential
from tests.support.cases import exhaustive
from tests.support.errors import fails


def _model() -> keras.Model:
    """Returns three cells, of which the last has most of the flops."""
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(8),
            layers.Dense(400),
        ]
    )


def _trained(num_examples: int = 11, **options: Any) -> tuple[Any, list[Any]]:
    """Returns the trained model, and its values with the loss."""
    trained: Any = PipelinedModel(_model(), **{"num_micro_batches": 4, **options})
    trained.compile("sgd", loss="mse")
    losses = fit(trained, num_examples, batch_size=8)["loss"]
    return trained, [*trained.get_weights(), losses]


@pytest.mark.exhaustive
def test_replicas_and_chosen_stages_train_to_the_same_bytes() -> None:
    """Mini-batches of 8 and 3 examples have the stages that were chosen first."""
    _, expected = _trained(devices=1, num_batch_shards=2)
    trained, found = _trained(
        devices=4, num_replicas=2, splits="auto", cell_costs="measured", batch_size=8
    )
    assert_same([expected, found])
    assert [len(stages) for stages in trained.pipeline.replicas] == [2, 2]


@pytest.mark.parametrize(
    ("options", "boundaries"),
    [
        ({}, [2, 3]),
        ({"cell_costs": [9.0, 1.0, 1.0]}, [1, 3]),
        ({"memory_limit": 1e6, "batch_size": 8}, [2, 3]),
    ],
    ids=["flops", "costs", "memory"],
)
def test_stages_are_chosen_by_costs(options: dict, boundaries: list[int]) -> None:
    model = PipelinedModel(_model(), devices=2, splits="auto", **options)
    assert model.pipeline.boundaries == boundaries


@pytest.mark.parametrize(
    ("options", "num_stages"),
    [
        ({"devices": 4, "num_replicas": 2, "num_micro_batches": 2}, 2),
        ({"splits": 2}, 2),
        ({}, 1),
    ],
)
def test_devices_and_splits_give_stages(options: Any, num_stages: int) -> None:
    assert PipelinedModel(_model(), **options).pipeline.num_stages == num_stages


@pytest.mark.parametrize(("batch_size", "expected"), [(3, 1), exhaustive(4, 0)])
def test_mini_batches_of_fewer_examples_than_micro_batches_are_reported(
    batch_size: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    trained: Any = PipelinedModel(sequential(), num_micro_batches=4)
    trained.compile("sgd", loss="mse")
    with caplog.at_level("WARNING"):
        fit(trained, 10, batch_size=batch_size, epochs=2)
    assert sum("num_micro_batches=4" in x for x in caplog.messages) == expected


@pytest.mark.exhaustive
def test_keras_use_builds_few_pipelines(caplog: pytest.LogCaptureFixture) -> None:
    trained: Any = PipelinedModel(_model(), num_micro_batches=2)
    x, y = (np.ones((30, *s[1:])) for s in (trained.input_shape, trained.output_shape))
    with caplog.at_level("WARNING"):
        for split in (0.1, 0.2):
            trained.compile("sgd", loss="mse")
            fit(trained, 30, batch_size=8, validation_split=split)
            trained.evaluate(x, y, batch_size=16, verbose=0)
            trained.predict(x, batch_size=16, verbose=0)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"devices": 3, "num_replicas": 2}, "PipelinedModel(devices=...)"),
        ({"devices": 2, "splits": 3}, "PipelinedModel(devices=...)"),
        ({"devices": 3, "splits": [1, 3]}, "PipelinedModel(devices=...)"),
        (
            {
                "devices": 4,
                "splits": 4,
                "stages_per_device": 2,
                "schedule": "interleaved",
            },
            "PipelinedModel(devices=...)",
        ),
        (  # It asked for the devices of half the stages.
            {
                "devices": 2,
                "splits": 3,
                "stages_per_device": 2,
                "schedule": "interleaved",
            },
            "pipeline.stages_per_device",
        ),
        (
            {"devices": 2, "splits": "auto", "memory_limit": 1e6},
            "PipelinedModel(batch_size=...)",
        ),
        (
            {"devices": 2, "splits": "auto", "cell_costs": "measured"},
            "PipelinedModel(batch_size=...)",
        ),
        ({"devices": 2, "batch_size": 8}, "PipelinedModel(batch_size=...)"),
        (
            {"devices": 2, "splits": "auto", "sequence_length": 8},
            "PipelinedModel(sequence_length=...)",
        ),
        ({"num_examples": 9, "devices": 1, "num_batch_shards": 2}, "fit(x=...)"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], path: str) -> None:
    with fails(path=path):
        _trained(**options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"devices": ["gpu:0", "gpu:1"]}, "cpu:"),
        ({"devices": 2, "schedule": "auto"}, "schedule"),
        ({"devices": 2, "recompute": "auto"}, "recompute"),
        ({"num_micro_batches": "auto"}, "num_micro_batches.*trainer"),
    ],
)
def test_options_that_the_pipeline_refuses(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _trained(**options)


def test_costs_are_those_of_matrix_products() -> None:
    """An einsum's too; elementwise operations cost one flop for each element."""
    inputs = keras.Input((5, 6))
    heads = layers.EinsumDense("btd,dnh->btnh", (5, 3, 7))(inputs)
    model = keras.Model(inputs, layers.Dense(2, use_bias=False)(heads))
    first, last = (
        KerasCell.Params().Set(calls=calls)
        for calls in model_cells(model).cells.values()
    )
    meta = KerasCell.FPropMeta(first, (4, 5, 6), None, None)
    assert meta.out_shapes == ((4, 5, 3, 7), None, None)
    products = 2 * 4 * 5 * 6 * 3 * 7
    assert products <= meta.flops < 1.2 * products
    meta = KerasCell.FPropMeta(last, *meta.out_shapes)
    products = 2 * 4 * 5 * 3 * 7 * 2
    assert products <= meta.flops < 2.5 * products
    assert meta.out_shapes[0] == (4, 5, 3, 2)


def test_stages_by_costs_leave_keras_a_seed_of_its_own() -> None:
    """It was made in the graph in which costs are counted, and was none afterwards."""
    keras.utils.clear_session(free_memory=False)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)])
    PipelinedModel(model, devices=2, splits="auto")
    assert keras.random.normal((2,)).shape == (2,)
