"""Tasks that are trained block by block: which heads they get, and what is refused.

Shapes: B examples, D channels, N classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.convolution import Conv2DLayer, GlobalAveragePoolingLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.models.amoebanet.stem_and_head import HeadLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.pipeline.devices import stage_devices  # noqa: F401  Asks for several.
from lingvo_pipe.training.task.local_training import with_local_losses
from lingvo_pipe.training.task.task_params import plain_task
from tests.models.transformer.small_models import (
    alone,
    language_model_task,
    pipelined_metrics_and_gradients,
    predicted,
    sentences,
    translation_batch,
    translation_task,
)
from tests.support.cases import exhaustive
from tests.support.errors import fails

CLASSES = 3


class Input:
    """Says what its batches are like."""

    def __init__(self, batch: NestedMap):
        self.element_spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, batch)


def _images(*shape: int) -> NestedMap:
    return NestedMap(
        image=tf.random.stateless_normal([4, *shape], [0, 1]),
        label=tf.constant([0, 1, 2, 0]),
        weight=tf.ones([4]),
    )


def _classifier(
    cells: list[InstantiableParams], scheme: str = "greedy", **local: Any
) -> InstantiableParams:
    p = ImageClassifier.Params().Set(name="task")
    p.pipeline.cell_tpl = cells
    p.local.Set(scheme=scheme, **local)
    return p


def _convolutions() -> list[InstantiableParams]:
    return [
        Conv2DLayer.Params().Set(filter_shape=[3, 3, 1, 4]),
        Conv2DLayer.Params().Set(filter_shape=[3, 3, 4, 5]),
        GlobalAveragePoolingLayer.Params(),
        FCLayer.Params().Set(input_dim=5, output_dim=CLASSES),
    ]


def _dense_cells() -> list[InstantiableParams]:
    sizes = [(6, 7), (7, 8), (8, CLASSES)]
    return [FCLayer.Params().Set(input_dim=i, output_dim=o) for i, o in sizes]


def _heads(p: InstantiableParams) -> list[InstantiableParams]:
    return [cell.head for cell in p.pipeline.cell_tpl if cell.cls is LocalLossLayer]


def test_heads_of_images_and_vectors_have_their_sizes() -> None:
    given = Input(_images(5, 5, 1))
    heads = _heads(with_local_losses(_classifier(_convolutions()), given))
    assert [head.cls for head in heads] == [HeadLayer, HeadLayer, FCLayer]
    assert [head.num_in for head in heads[:2]] == [4, 5]
    assert {head.num_classes for head in heads[:2]} == {CLASSES}
    assert (heads[2].input_dim, heads[2].output_dim) == (5, CLASSES)


def test_a_head_of_the_users_gets_the_sizes_it_leaves_open() -> None:
    given = Input(_images(6))
    own = FCLayer.Params().Set(activation="TANH")
    heads = _heads(with_local_losses(_classifier(_dense_cells(), head=own), given))
    assert [(head.input_dim, head.output_dim) for head in heads] == [(7, 3), (8, 3)]
    assert {head.activation for head in heads} == {"TANH"}
    assert own.input_dim == 0
    sized = own.Set(input_dim=7, output_dim=CLASSES)
    (head,) = _heads(
        with_local_losses(
            _classifier(_dense_cells(), "chunked", chunks=[1, 3], head=sized), given
        )
    )
    assert head == sized


def _text_batch() -> NestedMap:
    return predicted(alone(sentences([7, 5, 8, 3])), 8).Transform(tf.constant)


def _pairs() -> NestedMap:
    lengths = [7, 5, 8, 3]
    return translation_batch(alone(sentences(lengths)), alone(sentences(lengths, 1)))


TASKS: list[tuple[Callable[[], InstantiableParams], Callable[[], NestedMap]]] = [
    (lambda: _classifier(_dense_cells()), lambda: _images(6)),
    (language_model_task, _text_batch),
    (lambda: translation_task(tied=True), _pairs),
]


@pytest.mark.parametrize(
    "scheme", [exhaustive("greedy"), exhaustive("overlapping"), "chunked"]
)
@pytest.mark.parametrize(
    ("make", "batch"),
    [*TASKS[:2], exhaustive(*TASKS[2])],
    ids=["images", "text", "translation"],
)
def test_every_weight_of_every_block_is_trained(
    make: Callable[[], InstantiableParams],
    batch: Callable[[], NestedMap],
    scheme: str,
) -> None:
    p, given = make(), batch()
    p.local.Set(scheme=scheme, chunks=2 if scheme == "chunked" else None)
    p.pipeline.Set(splits=2, num_micro_batches=2, schedule="local")
    before = p.Copy()
    task = with_local_losses(p, Input(given)).Instantiate()
    assert p == before
    metrics, gradients = pipelined_metrics_and_gradients(task, given)
    trained = {k for k, v in task.VariablePaths().items() if v.trainable}
    assert gradients.keys() == trained
    for path, gradient in gradients.items():
        # A bias of keys moves all that a query sees alike.
        if not path.endswith("key/b"):
            assert abs(gradient).max() > 0.0, path
    blocks = [name for name in metrics if name.endswith("_loss")]
    assert len(blocks) == len(_heads(task.params))
    plain = plain_task(p).Instantiate()
    own = [path for path in task.VariablePaths() if "/local_" not in path]
    assert own == list(plain.VariablePaths())


@pytest.mark.exhaustive
def test_the_encoder_learns_of_the_target() -> None:
    """Hidden states of the target that have not seen the source teach it nothing."""
    p, batch = translation_task(num_layers=1), _pairs()
    cells = p.pipeline.cell_tpl
    boundaries = [cell.name for cell in cells].index("target_embedding") + 1
    p.local.Set(scheme="chunked", chunks=[boundaries, len(cells)])
    task = with_local_losses(p, Input(batch)).Instantiate()
    _, gradients = pipelined_metrics_and_gradients(task, batch)
    encoder = [g for path, g in gradients.items() if "/encoder_0/" in path]
    assert encoder
    assert max(abs(gradient).max() for gradient in encoder) > 0.0


def test_one_block_is_the_plain_task() -> None:
    p = _classifier(_dense_cells(), "chunked", chunks=1)
    given = Input(_images(6))
    assert with_local_losses(p, given) == plain_task(p)
    p.local.Set(scheme="backpropagation", chunks=None)
    assert with_local_losses(p, given) == p


def test_stages_may_be_automatic_and_params_read_from_text() -> None:
    p = _classifier(_dense_cells())
    p.FromText("local.scheme : 'chunked'; local.chunks : 2", separator=";")
    p.pipeline.Set(splits="auto", devices=["cpu:0", "cpu:1"], input_shapes=[(2, 6)])
    local = with_local_losses(p, Input(_images(6)))
    assert len(_heads(local)) == 1
    assert local.Instantiate().pipeline.num_stages == 2


def test_a_task_without_its_heads_is_refused() -> None:
    p = _classifier(_dense_cells())
    with fails(path="task.local.scheme", got="greedy"):
        p.Copy().Instantiate()
    with_local_losses(p, Input(_images(6))).Instantiate()
    plain_task(p).Instantiate()


@pytest.mark.parametrize(
    ("local", "path"),
    [
        ({"scheme": "chunky"}, "task.local.scheme"),
        ({"scheme": "chunked"}, "task.local.chunks"),
        ({"scheme": "chunked", "chunks": 9}, "task.local.chunks"),
    ],
)
def test_invalid_schemes_are_refused(local: Any, path: str) -> None:
    p = _classifier(_dense_cells()).Set(local=_classifier([]).local.Set(**local))
    with fails(path=path):
        with_local_losses(p, Input(_images(6)))


class RowsLayer(BaseLayer):
    """`[B, D]` -> `[B, 1, D]`, of which a classifier knows nothing."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x[:, tf.newaxis]


class LastRowLayer(BaseLayer):
    """`[B, 1, D]` -> `[B, D]`."""

    def FProp(self, theta: NestedMap, x: tf.Tensor) -> tf.Tensor:
        return x[:, 0]


def test_without_a_known_head_one_must_be_given() -> None:
    cells = [RowsLayer.Params(), LastRowLayer.Params(), *_dense_cells()]
    p = _classifier(cells)
    with fails(path="task.local.head") as info:
        with_local_losses(p, Input(_images(6)))
    assert "[4, 1, 6]" in info.value.expected
    p.local.head = RowsLayer.Params()
    assert len(_heads(with_local_losses(p, Input(_images(6))))) == 4
