"""A pipeline's input shapes become the shapes of its micro-batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.task.pipeline_inputs import configure_inputs
from tests.models.transformer.small_models import language_model_task, translation_task
from tests.support.cases import exhaustive

DEVICES = ["cpu:0", "cpu:1"]


class Input:
    element_spec = NestedMap(
        image=tf.TensorSpec([10, 6], tf.float64),
        label=tf.TensorSpec([10], tf.int32),
        weight=tf.TensorSpec([10], tf.float32),
    )


def task_params(**pipeline: Any) -> InstantiableParams:
    p = ImageClassifier.Params().Set(name="task")
    cells = [FCLayer.Params().Set(input_dim=6, output_dim=6) for _ in range(3)]
    p.pipeline.Set(cell_tpl=cells, devices=DEVICES, splits="auto", num_micro_batches=4)
    p.pipeline.Set(**pipeline)
    return p


def read_back(p: InstantiableParams) -> InstantiableParams:
    """Returns the params that their text makes."""
    again = p.cls.Params()
    again.FromText(p.ToText())
    return again


@pytest.mark.parametrize(
    "pipeline",
    [
        {},
        {"cell_costs": "measured"},
        {"cell_costs": [1, 2, 3], "memory_limit": 10**6},
        {"splits": [1, 3], "memory_limit": 1e6},
        {"slices": {"cells[0]": 2}, "recompute": [3], "offload": [2]},
    ],
    ids=str,
)
def test_micro_batches_are_rounded_up(pipeline: dict[str, Any]) -> None:
    p = task_params(**pipeline)
    configure_inputs(p, Input())
    assert p.pipeline.input_shapes == [(3, 6)]
    assert p.pipeline.input_dtypes == [tf.float64]
    assert len(p.Copy().Instantiate().pipeline.boundaries) == 2
    assert read_back(p) == p


class Sentences:
    element_spec = NestedMap(
        {
            stream: NestedMap(
                dict.fromkeys(
                    ("ids", "segment_ids", "segment_pos", "labels"),
                    tf.TensorSpec([8, length], tf.int32),
                )
            )
            for stream, length in (("source", 7), ("target", 5))
        }
    )


class Text:
    element_spec = Sentences.element_spec.target


_TRANSLATION = (
    functools.partial(translation_task, num_layers=1),
    Sentences(),
    {"source": 7, "target": 5},
)
_TEXT = (functools.partial(language_model_task, num_layers=1), Text(), {"target": 5})


@pytest.mark.parametrize(
    ("make", "given", "lengths", "cell_costs"),
    [
        (*_TRANSLATION, None),
        exhaustive(*_TRANSLATION, "measured"),
        exhaustive(*_TEXT, None),
        (*_TEXT, "measured"),
    ],
    ids=["translation", "translation-measured", "text", "text-measured"],
)
def test_maps_of_inputs_have_a_text_form(
    make: Callable[[], InstantiableParams],
    given: Any,
    lengths: dict[str, int],
    cell_costs: str | None,
) -> None:
    p = make()
    p.pipeline.Set(devices=DEVICES, splits="auto", num_micro_batches=4)
    p.pipeline.cell_costs = cell_costs
    configure_inputs(p, given)
    names = {stream: ["ids", "segment_ids", "segment_pos"] for stream in lengths}
    names["target"].append("labels")  # For logits in slices.
    (shapes,), (dtypes,) = p.pipeline.input_shapes, p.pipeline.input_dtypes
    assert shapes == {k: dict.fromkeys(names[k], (2, n)) for k, n in lengths.items()}
    assert dtypes == {k: dict.fromkeys(names[k], tf.int32) for k in lengths}
    assert read_back(p) == p
    assert len(read_back(p).Instantiate().pipeline.boundaries) == 2


@pytest.mark.parametrize(
    "pipeline",
    [{"cell_costs": [1, 2, 3]}, {"splits": 2}, {"input_shapes": [(5, 6)]}],
    ids=str,
)
def test_given_and_unneeded_shapes_stay(pipeline: dict[str, Any]) -> None:
    p = task_params(**pipeline)
    before = p.Copy()
    configure_inputs(p, Input())
    assert p == before


def test_batches_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(ValueError, match=r"task/pipeline\b.*\b10\b.*\b11\b"):
        configure_inputs(task_params(num_micro_batches=11), Input())
