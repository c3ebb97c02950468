"""Images and labels that do not fit the model are found first, or explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.input.images.image_input import ImageClassificationInput
from lingvo_pipe.layers.convolution import Conv2DLayer, GlobalAveragePoolingLayer
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.models.amoebanet.stem_and_head import HeadLayer, StemLayer
from lingvo_pipe.models.images.image_classifier import ImageClassifier
from lingvo_pipe.models.keras.keras_task import KerasTask
from lingvo_pipe.nested_map import NestedMap
from lingvo_pipe.training.task.image_checks import labels_explained
from tests.support.errors import fails

Task = InstantiableParams


def _task(*cells: InstantiableParams, prologue: Any = ()) -> Task:
    p = ImageClassifier.Params()
    p.pipeline.Set(cell_tpl=list(cells), before_tpl=list(prologue))
    return p


def _nested(channels: int, classes: int) -> Task:
    conv = Conv2DLayer.Params().Set(filter_shape=[3, 3, channels, 4])
    first = SequentialLayer.Params().Set(sub=[conv, ActivationLayer.Params()])
    fc = FCLayer.Params().Set(input_dim=4, output_dim=classes)
    last = SequentialLayer.Params().Set(sub=[GlobalAveragePoolingLayer.Params(), fc])
    return _task(first, last)


def _ends(channels: int, classes: int) -> Task:
    head = HeadLayer.Params().Set(num_classes=classes)
    return _task(head, prologue=[StemLayer.Params().Set(num_in=channels)])


def _model(channels: int, classes: int) -> keras.Model:
    layers = [keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((8, 8, channels)), *layers])


def _keras(channels: int, classes: int) -> Task:
    p = KerasTask.ParamsOf(_model, channels=channels, classes=classes)
    return p.Set(loss="SparseCategoricalCrossentropy")


# Where each model declares its channels and its classes.
PATHS: dict[Callable[[int, int], Task], tuple[str, str]] = {
    _nested: ("cell_tpl[0].sub[0].filter_shape", "cell_tpl[1].sub[1].output_dim"),
    _ends: ("before_tpl[0].num_in", "cell_tpl[0].num_classes"),
    _keras: ("Keras", "Keras"),
}
each_model = pytest.mark.parametrize("make", PATHS)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    p = ImageClassificationInput.Params().Set(batch_size=4)
    return p.Set(data_dir=str(tmp_path_factory.mktemp("data"))).Instantiate()


def _check(task: Task, data: Any) -> None:
    task.cls.CheckInput(task, data)


@each_model
@pytest.mark.parametrize("classes", [10, 11])
def test_enough_outputs_are_accepted(
    make: Callable[[int, int], Task], classes: int, digits: Any
) -> None:
    _check(make(1, classes), digits)


@each_model
def test_too_few_outputs_are_refused(
    make: Callable[[int, int], Task], digits: Any
) -> None:
    with fails(got=9) as info:
        _check(make(1, 9), digits)
    assert PATHS[make][1] in info.value.path


@each_model
def test_other_channels_are_refused(
    make: Callable[[int, int], Task], digits: Any
) -> None:
    with fails(path="input.channels", got=1) as info:
        _check(make(3, 10), digits)
    assert PATHS[make][0] in info.value.expected


def test_what_layers_do_not_declare_is_not_checked(digits: Any) -> None:
    _check(_task(BaseLayer.Params()), digits)
    _check(_task(FCLayer.Params().Set(output_dim=0)), digits)
    _check(_keras(1, 1).Set(loss="mse"), digits)


@pytest.mark.parametrize("label", [3, -1])
def test_a_label_without_an_output_is_explained(label: int, digits: Any) -> None:
    task = _nested(1, 3).Set(name="task").Instantiate()
    image = tf.constant(np.ones([2, 8, 8, 1], np.float32))
    batch = NestedMap(image=image, label=tf.constant([0, label]), weight=tf.ones([2]))
    with fails(path="input", got=label) as info, labels_explained(digits, digits):
        task.Diagnose(task.theta, batch)
    assert "from 0 to 2" in info.value.expected
    assert "micro-batch" in info.value.hint


def test_other_errors_are_left_alone(digits: Any) -> None:
    error = tf.errors.InvalidArgumentError(None, None, "other")
    with pytest.raises(tf.errors.InvalidArgumentError), labels_explained(digits):
        raise error
