"""Published models have stages of even cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

import model_registry
from lingvo_pipe.layers.core.model_size import layer_sizes
from lingvo_pipe.pipeline.splitting.balance import balanced_boundaries
from params import staged_model
from tests.support.cases import fast_cases

# Number of stages, and the speed-up that the costliest allows.
SEVERAL_STAGES = {
    "AmoebaNetB557M": (4, 3.82),
    "AmoebaNetD_18_256": (8, 6.73),
    "AmoebaNetD_18_544": (2, 1.97),
    "AmoebaNetD_36_544": (4, 3.81),
    "AmoebaNetD_72_512": (8, 7.42),
}
ONE_STAGE = [
    "AmoebaNetA_18_190",
    "AmoebaNetC_18_228",
    "AmoebaNetD_18_208",
    "AmoebaNetD_18_416",
]


def _pipeline(name: str) -> Any:
    return model_registry.GetParams(f"image.imagenet.{name}", "Train").task.pipeline


def _inputs(size: int) -> list[tf.TensorSpec]:
    image = tf.TensorSpec([1, size, size, 3])
    return [image, tf.TensorSpec([1], tf.int32), tf.TensorSpec([1])]


def _speed_up(work: Sequence[int], boundaries: Sequence[int]) -> float:
    """Returns the whole cost over the costliest stage's."""
    stages = [
        sum(work[start:end]) for start, end in itertools.pairwise([0, *boundaries])
    ]
    return sum(work) / max(stages)


def _even_numbers(num_layers: int, num_stages: int) -> list[int]:
    return balanced_boundaries([1] * num_layers, num_stages)


@pytest.mark.parametrize("name", fast_cases(SEVERAL_STAGES, ["AmoebaNetD_18_256"]))
def test_no_stage_costs_much_more_than_others(name: str) -> None:
    pipeline, (num_stages, bound) = _pipeline(name), SEVERAL_STAGES[name]
    assert len(pipeline.splits) == num_stages
    cls: Any = model_registry.GetClass(f"image.imagenet.{name}")
    size = cls.IMAGE_SIZE
    sizes = layer_sizes(pipeline.cell_tpl, *_inputs(size))
    work, passed_on = [x.flops for x in sizes], [x.output_elements for x in sizes]
    assert pipeline.splits == balanced_boundaries(work, num_stages, passed_on)
    assert _speed_up(work, pipeline.splits) == pytest.approx(bound, abs=0.01)
    even = _even_numbers(len(work), num_stages)
    assert _speed_up(work, even) <= _speed_up(work, pipeline.splits)


@pytest.mark.parametrize("name", ONE_STAGE)
def test_one_stage_can_become_one_per_device(name: str) -> None:
    """A list of boundaries would contradict --devices=2."""
    assert _pipeline(name).splits == 1


@pytest.mark.exhaustive
def test_the_measured_speed_is_within_reach() -> None:
    """GPipe's table 2, AmoebaNet-D (18, 256), M = 32: 8 stages are 2.88 times 2."""
    pipeline = _pipeline("AmoebaNetD_18_256")
    work = [x.multiply_adds for x in layer_sizes(pipeline.cell_tpl, *_inputs(224))]
    two = _speed_up(work, balanced_boundaries(work, 2)) * _utilization(2)

    def gain(boundaries: Sequence[int]) -> float:
        return _speed_up(work, boundaries) * _utilization(8) / two

    measured = 3.48 / 1.21
    assert gain(pipeline.splits) == pytest.approx(measured, rel=0.01)
    assert gain(_even_numbers(len(work), 8)) < 0.87 * measured


def _utilization(num_stages: int, num_micro_batches: int = 32) -> float:
    """Returns the share of time outside the bubble."""
    return num_micro_batches / (num_micro_batches + num_stages - 1)


def test_stages_are_chosen_once_for_equal_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers_of_cells = []

    def counted(cells: list[Any], *inputs: Any) -> Any:
        numbers_of_cells.append(len(cells))
        return layer_sizes(cells, *inputs)

    monkeypatch.setattr(staged_model, "layer_sizes", counted)
    tiny: Any = model_registry.GetClass("lm.text.TransformerTiny")
    small: Any = type("Small", (tiny,), {"LENGTH": 24})
    splits = [small().Task().pipeline.splits for _ in range(2)]
    small.NUM_LAYERS = tiny.NUM_LAYERS + 2
    splits.append(small().Task().pipeline.splits)
    assert [x[-1] for x in splits] == [6, 6, 8]
    assert numbers_of_cells == [6, 8]
    small.NUM_BLOCKS = 2
    small().Task()
    assert numbers_of_cells == [6, 8]
