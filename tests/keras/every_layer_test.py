"""Every public layer of Keras: micro-batches give plain Keras's rows, or it is refused.

A layer in training, random ones included, is called by plain Keras on a mini-batch, and
by its cell on two micro-batches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.cells.model_cells import model_cells
from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.layers.core.forward_context import ForwardContext
from tests.keras.every_setting import public_names
from tests.keras.toy_models import assert_close
from tests.support.cases import exhaustive

Inputs = list[np.ndarray]
_ROWS = 6


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(_ROWS, *shape)).astype("float32")


_VECTORS = [_floats(8)]
_SEQUENCES = [_floats(10, 6)]
_IMAGES = [np.abs(_floats(12, 12, 3)) * 60.0]
_VOLUMES = [_floats(6, 6, 6, 2)]
_TOKENS = [np.random.default_rng(0).integers(0, 9, (_ROWS, 10)).astype("int32")]
_PAIR = [_floats(8), _floats(8) * 2.0]
_KERNELS = {"filters": 4, "kernel_size": 3}
_COMMON = {"seed": 1, "value_range": (0, 255)}  # For layers that take them.

# Inputs, names of layers, and their arguments.
_GROUPS: list[tuple[Inputs, str, dict[str, Any]]] = [
    (
        _VECTORS,
        "BatchNormalization ELU Identity LayerNormalization LeakyReLU PReLU "
        "RMSNormalization ReLU Softmax UnitNormalization",
        {},
    ),
    (_VECTORS, "Activation", {"activation": "gelu"}),
    (_VECTORS, "ActivityRegularization", {"l2": 0.1}),
    (_VECTORS, "AlphaDropout Dropout GaussianDropout", {"rate": 0.3}),
    (_VECTORS, "Dense", {"units": 4}),
    (_VECTORS, "Discretization", {"bin_boundaries": [-0.5, 0.5]}),
    (_VECTORS, "EinsumDense", {"equation": "ab,bc->ac", "output_shape": 4}),
    (_VECTORS, "GaussianNoise", {"stddev": 0.3}),
    (_VECTORS, "GroupNormalization", {"groups": 2}),
    (_VECTORS, "Normalization", {"mean": 0.5, "variance": 2.0}),
    (_VECTORS, "RepeatVector", {"n": 3}),
    (_VECTORS, "Rescaling", {"scale": 2.0}),
    (_VECTORS, "Reshape", {"target_shape": (4, 2)}),
    (_PAIR, "Add Average Concatenate Maximum Minimum Multiply Subtract", {}),
    (_PAIR, "Dot", {"axes": 1}),
    (
        _SEQUENCES,
        "Cropping1D Flatten GlobalAveragePooling1D GlobalMaxPool1D Masking MaxPool1D "
        "UpSampling1D ZeroPadding1D",
        {},
    ),
    (_SEQUENCES, "AdaptiveAveragePooling1D AdaptiveMaxPooling1D", {"output_size": 5}),
    (_SEQUENCES, "AveragePooling1D", {"pool_size": 2}),
    (_SEQUENCES, "Conv1D Conv1DTranspose SeparableConv1D", _KERNELS),
    (_SEQUENCES, "DepthwiseConv1D", {"kernel_size": 3}),
    (_SEQUENCES, "GRU", {"units": 4, "dropout": 0.2}),
    (_SEQUENCES, "LSTM", {"units": 4, "dropout": 0.2, "recurrent_dropout": 0.2}),
    (_SEQUENCES, "Permute", {"dims": (2, 1)}),
    (_SEQUENCES, "SimpleRNN", {"units": 4}),
    (_SEQUENCES, "SpatialDropout1D", {"rate": 0.3}),
    (
        _IMAGES,
        "AugMix AutoContrast ContrastLimitedAdaptiveHistogramEqualization Cropping2D "
        "CutMix GlobalAveragePooling2D GlobalMaxPool2D MaxPool2D MixUp RandAugment "
        "RandomElasticTransform RandomFlip RandomGaussianBlur Solarization "
        "UpSampling2D ZeroPadding2D",
        {},
    ),
    (_IMAGES, "AdaptiveAveragePooling2D AdaptiveMaxPooling2D", {"output_size": 5}),
    (_IMAGES, "AveragePooling2D", {"pool_size": 2}),
    (_IMAGES, "CenterCrop RandomCrop", {"height": 8, "width": 8}),
    (_IMAGES, "Conv2D Conv2DTranspose SeparableConv2D", _KERNELS),
    (_IMAGES, "DepthwiseConv2D", {"kernel_size": 3}),
    (
        _IMAGES,
        "RandomBrightness RandomColorDegeneration RandomContrast RandomGrayscale "
        "RandomHue RandomInvert RandomRotation RandomSaturation RandomSharpness",
        {"factor": 0.4},
    ),
    (_IMAGES, "RandomColorJitter", {"contrast_factor": 0.5}),
    (_IMAGES, "RandomErasing RandomPerspective", {"factor": 1.0}),
    (_IMAGES, "RandomPosterization", {"factor": 4}),
    (_IMAGES, "RandomShear", {"x_factor": 0.3}),
    (_IMAGES, "RandomTranslation", {"height_factor": 0.2, "width_factor": 0.2}),
    (_IMAGES, "RandomZoom", {"height_factor": 0.2}),
    (_IMAGES, "Resizing", {"height": 6, "width": 6}),
    (_IMAGES, "SpatialDropout2D", {"rate": 0.3}),
    ([_floats(4, 8, 2)], "ConvLSTM1D", _KERNELS),
    ([_floats(4, 8, 8, 2)], "ConvLSTM2D", _KERNELS),
    ([_floats(3, 4, 4, 4, 2)], "ConvLSTM3D", {"filters": 2, "kernel_size": 2}),
    (
        _VOLUMES,
        "Cropping3D GlobalAveragePooling3D GlobalMaxPool3D MaxPool3D UpSampling3D "
        "ZeroPadding3D",
        {},
    ),
    (_VOLUMES, "AdaptiveAveragePooling3D AdaptiveMaxPooling3D", {"output_size": 3}),
    (_VOLUMES, "AveragePooling3D", {"pool_size": 2}),
    (_VOLUMES, "Conv3D Conv3DTranspose", _KERNELS),
    (_VOLUMES, "SpatialDropout3D", {"rate": 0.3}),
    (_TOKENS, "CategoryEncoding", {"num_tokens": 9}),
    (_TOKENS, "Embedding ReversibleEmbedding", {"input_dim": 9, "output_dim": 4}),
    (_TOKENS, "HashedCrossing Hashing", {"num_bins": 4}),
    (_TOKENS, "IntegerLookup", {"vocabulary": [1, 2, 3]}),
    (_TOKENS, "StringLookup TextVectorization", {"vocabulary": ["a"]}),
    (_SEQUENCES * 2, "AdditiveAttention Attention", {"dropout": 0.2, "seed": 1}),
    ([_floats(400)], "MelSpectrogram", {"fft_length": 64, "sequence_stride": 32}),
    (
        [_floats(400, 1)],
        "STFTSpectrogram",
        {"frame_length": 64, "frame_step": 32, "window": None},
    ),
]
_LAYERS: dict[str, tuple[Inputs, Any]] = {
    name: (inputs, arguments)
    for inputs, names, arguments in _GROUPS
    for name in names.split()
}


def _around(layer: Callable[[], Any], inputs: Inputs = _SEQUENCES) -> Any:
    return inputs, lambda x: layer()(x)


def _recurrent(cell: Callable[[], Any]) -> Any:
    return _around(lambda: layers.RNN(cell()))


# Layers that take other layers, or several arguments.
_COMPOSED: dict[str, tuple[Inputs, Any]] = {
    "Bidirectional": _around(lambda: layers.Bidirectional(layers.LSTM(3))),
    "GRUCell": _recurrent(lambda: layers.GRUCell(4)),
    "GroupQueryAttention": (
        _SEQUENCES,
        lambda x: layers.GroupQueryAttention(4, 4, 2, dropout=0.2, seed=1)(x, x),
    ),
    "LSTMCell": _recurrent(lambda: layers.LSTMCell(4)),
    "Lambda": _around(lambda: layers.Lambda(lambda y: y * 2.0)),
    "MultiHeadAttention": (
        _SEQUENCES,
        lambda x: layers.MultiHeadAttention(2, 4, dropout=0.2, seed=1)(x, x),
    ),
    "Pipeline": _around(
        lambda: layers.Pipeline([layers.RandomFlip(seed=1), layers.Rescaling(2.0)]),
        _IMAGES,
    ),
    "RNN": _recurrent(lambda: layers.SimpleRNNCell(4)),
    "SimpleRNNCell": _recurrent(lambda: layers.SimpleRNNCell(4)),
    "SpectralNormalization": _around(
        lambda: layers.SpectralNormalization(layers.Dense(4))
    ),
    "StackedRNNCells": _recurrent(
        lambda: layers.StackedRNNCells([layers.LSTMCell(4), layers.GRUCell(3)])
    ),
    "TimeDistributed": _around(lambda: layers.TimeDistributed(layers.Dense(4))),
}

# What a functional model of TensorFlow's has no use for.
_NO_LAYERS = {
    "Equalization",  # A symbolic call returns its input, which is a cycle.
    *("FlaxLayer", "InputLayer", "JaxLayer", "Layer", "MaxNumBoundingBoxes"),
    *("TFSMLayer", "TorchModuleWrapper", "Wrapper"),
}

# Slow ones, and RNN, which is SimpleRNNCell's case too.
_EXHAUSTIVE = {"RNN", "RandAugment", "RandomElasticTransform"}

REFUSED = {
    *("CutMix", "MelSpectrogram", "MixUp"),  # Examples depend on others.
    "AugMix",  # It draws from a Dirichlet distribution.
    *("HashedCrossing", "Hashing", "IntegerLookup", "StringLookup"),  # Tables.
    "TextVectorization",
    "SpectralNormalization",  # It writes its weight.
}


def layer_names() -> set[str]:
    """Returns the public names of Keras's layers, one for each class."""
    return set(public_names(layers, layers.Layer)) - _NO_LAYERS


def _model(name: str) -> tuple[keras.Model, Inputs]:
    keras.utils.set_random_seed(4)
    values, how = {**_LAYERS, **_COMPOSED}[name]
    given = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in values]
    if callable(how):
        return keras.Model(given, how(*given)), values
    kind = getattr(layers, name)
    taken = inspect.signature(kind).parameters
    common = {key: x for key, x in _COMMON.items() if key in taken}
    layer = kind(**{**common, **how})
    return keras.Model(given, layer(given[0] if len(given) == 1 else given)), values


def _by_cells(model: keras.Model, values: Inputs, sizes: list[int]) -> list[np.ndarray]:
    """Returns the outputs of the model's cells for micro-batches of these sizes."""
    cells = [
        KerasCell.Params().Set(name=f"cell{i}", calls=calls).Instantiate()
        for i, calls in enumerate(model_cells(model).cells.values())
    ]
    found, first = [], 0
    for size in sizes:
        triples: Any = [
            z
            for x in values
            for z in (tf.constant(x[first : first + size]), None, None)
        ]
        with ForwardContext(
            step=tf.constant(0, tf.int64),
            first_example=tf.constant(first, tf.int64),
            num_rows=size,
        ):
            for cell in cells:
                triples = cell.FProp(cell.vars, *triples)
        found.append([np.asarray(x) for x in triples[::3]])
        first += size
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def test_all_public_layers_are_here() -> None:
    assert layer_names() == {*_LAYERS, *_COMPOSED} & set(dir(layers))


@pytest.mark.parametrize(
    "name",
    [
        exhaustive(name) if name in _EXHAUSTIVE else name
        for name in sorted({*_LAYERS, *_COMPOSED} - REFUSED)
    ],
)
def test_micro_batches_give_plain_keras_rows(name: str) -> None:
    if not hasattr(layers, name):
        pytest.skip(f"This Keras has no {name}.")
    # Batch norm's moments are each micro-batch's own.
    sizes = [_ROWS] if name == "BatchNormalization" else [2, 4]
    model, values = _model(name)
    by_cells = _by_cells(model, values, sizes)  # It leaves seeds as they are.
    expected = keras.tree.flatten(
        model([tf.constant(x) for x in values], training=True)
    )
    assert_close([expected, by_cells], atol=1e-5)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_it_is_refused_by_name(name: str) -> None:
    def run() -> None:
        model, values = _model(name)
        PipelinedModel(model, devices=1)
        _by_cells(model, values, [_ROWS])

    with pytest.raises((ValueError, TypeError)) as error:
        run()
    assert name.lower() in str(error.value).lower().replace("_", "")
