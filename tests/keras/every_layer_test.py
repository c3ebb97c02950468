"""Every public layer of Keras: micro-batches give plain Keras's rows, or it is refused.

A layer in training, random ones included, is called by plain Keras on a mini-batch, and
by its cell on two micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from lingvo_pipe.keras.keras_cell import KerasCell
from lingvo_pipe.keras.model_cells import model_cells
from lingvo_pipe.keras.pipelined_model import PipelinedModel
from lingvo_pipe.layers.core.forward_context import ForwardContext
from tests.keras.every_setting import public_names

Inputs = list[np.ndarray]
_ROWS = 6


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(_ROWS, *shape)).astype("float32")


def _vectors() -> Inputs:
    return [_floats(8)]


def _two() -> Inputs:
    return [_floats(8), _floats(8) * 2.0]


def _sequences() -> Inputs:
    return [_floats(10, 6)]


def _images() -> Inputs:
    return [np.abs(_floats(12, 12, 3)) * 60.0]


def _frames() -> Inputs:
    return [_floats(4, 8, 8, 2)]


def _volumes() -> Inputs:
    return [_floats(6, 6, 6, 2)]


def _tokens() -> Inputs:
    return [np.random.default_rng(0).integers(0, 9, (_ROWS, 10)).astype("int32")]


def _by(kind: Callable[[], Inputs], **arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: (kind, given) for name, given in arguments.items()}


_LAYERS: dict[str, tuple[Callable[[], Inputs], dict[str, Any]]] = {
    **_by(
        _vectors,
        Activation={"activation": "gelu"},
        ActivityRegularization={"l2": 0.1},
        AlphaDropout={"rate": 0.3, "seed": 1},
        BatchNormalization={},
        Dense={"units": 4},
        Discretization={"bin_boundaries": [-0.5, 0.5]},
        Dropout={"rate": 0.3, "seed": 1},
        ELU={},
        EinsumDense={"equation": "ab,bc->ac", "output_shape": 4},
        GaussianDropout={"rate": 0.3, "seed": 1},
        GaussianNoise={"stddev": 0.3, "seed": 1},
        GroupNormalization={"groups": 2},
        Identity={},
        LayerNormalization={},
        LeakyReLU={},
        Normalization={"mean": 0.5, "variance": 2.0},
        PReLU={},
        RMSNormalization={},
        ReLU={},
        RepeatVector={"n": 3},
        Rescaling={"scale": 2.0},
        Reshape={"target_shape": (4, 2)},
        Softmax={},
        UnitNormalization={},
    ),
    **_by(
        _two,
        Add={},
        Average={},
        Concatenate={},
        Dot={"axes": 1},
        Maximum={},
        Minimum={},
        Multiply={},
        Subtract={},
    ),
    **_by(
        _sequences,
        AdaptiveAveragePooling1D={"output_size": 5},
        AdaptiveMaxPooling1D={"output_size": 5},
        AveragePooling1D={"pool_size": 2},
        Conv1D={"filters": 4, "kernel_size": 3},
        Conv1DTranspose={"filters": 4, "kernel_size": 3},
        Cropping1D={},
        DepthwiseConv1D={"kernel_size": 3},
        Flatten={},
        GRU={"units": 4, "dropout": 0.2, "seed": 1},
        GlobalAveragePooling1D={},
        GlobalMaxPool1D={},
        LSTM={"units": 4, "dropout": 0.2, "recurrent_dropout": 0.2, "seed": 1},
        Masking={},
        MaxPool1D={},
        Permute={"dims": (2, 1)},
        SeparableConv1D={"filters": 4, "kernel_size": 3},
        SimpleRNN={"units": 4},
        SpatialDropout1D={"rate": 0.3, "seed": 1},
        UpSampling1D={},
        ZeroPadding1D={},
    ),
    **_by(
        _images,
        AdaptiveAveragePooling2D={"output_size": 5},
        AdaptiveMaxPooling2D={"output_size": 5},
        AugMix={"value_range": (0, 255), "seed": 1},
        AutoContrast={"value_range": (0, 255)},
        AveragePooling2D={"pool_size": 2},
        CenterCrop={"height": 8, "width": 8},
        ContrastLimitedAdaptiveHistogramEqualization={"value_range": (0, 255)},
        Conv2D={"filters": 4, "kernel_size": 3},
        Conv2DTranspose={"filters": 4, "kernel_size": 3},
        Cropping2D={},
        CutMix={"seed": 1},
        DepthwiseConv2D={"kernel_size": 3},
        GlobalAveragePooling2D={},
        GlobalMaxPool2D={},
        MaxPool2D={},
        MixUp={"seed": 1},
        RandAugment={"value_range": (0, 255), "seed": 1},
        RandomBrightness={"factor": 0.3, "seed": 1},
        RandomColorDegeneration={"factor": 0.5, "seed": 1},
        RandomColorJitter={"value_range": (0, 255), "contrast_factor": 0.5, "seed": 1},
        RandomContrast={"factor": 0.5, "seed": 1},
        RandomCrop={"height": 8, "width": 8, "seed": 1},
        RandomElasticTransform={"value_range": (0, 255), "seed": 1},
        RandomErasing={"factor": 1.0, "seed": 1},
        RandomFlip={"seed": 1},
        RandomGaussianBlur={"value_range": (0, 255), "seed": 1},
        RandomGrayscale={"factor": 0.5, "seed": 1},
        RandomHue={"factor": 0.5, "seed": 1},
        RandomInvert={"factor": 0.5, "value_range": (0, 255), "seed": 1},
        RandomPerspective={"factor": 1.0, "seed": 1},
        RandomPosterization={"factor": 4, "seed": 1},
        RandomRotation={"factor": 0.2, "seed": 1},
        RandomSaturation={"factor": 0.5, "seed": 1},
        RandomSharpness={"factor": 0.5, "value_range": (0, 255), "seed": 1},
        RandomShear={"x_factor": 0.3, "seed": 1},
        RandomTranslation={"height_factor": 0.2, "width_factor": 0.2, "seed": 1},
        RandomZoom={"height_factor": 0.2, "seed": 1},
        Resizing={"height": 6, "width": 6},
        SeparableConv2D={"filters": 4, "kernel_size": 3},
        Solarization={"seed": 1},
        SpatialDropout2D={"rate": 0.3, "seed": 1},
        UpSampling2D={},
        ZeroPadding2D={},
    ),
    **_by(_frames, ConvLSTM2D={"filters": 2, "kernel_size": 3}),
    **_by(lambda: [_floats(4, 8, 2)], ConvLSTM1D={"filters": 2, "kernel_size": 3}),
    **_by(
        lambda: [_floats(3, 4, 4, 4, 2)], ConvLSTM3D={"filters": 2, "kernel_size": 2}
    ),
    **_by(
        _volumes,
        AdaptiveAveragePooling3D={"output_size": 3},
        AdaptiveMaxPooling3D={"output_size": 3},
        AveragePooling3D={"pool_size": 2},
        Conv3D={"filters": 2, "kernel_size": 3},
        Conv3DTranspose={"filters": 2, "kernel_size": 3},
        Cropping3D={},
        GlobalAveragePooling3D={},
        GlobalMaxPool3D={},
        MaxPool3D={},
        SpatialDropout3D={"rate": 0.3, "seed": 1},
        UpSampling3D={},
        ZeroPadding3D={},
    ),
    **_by(
        _tokens,
        CategoryEncoding={"num_tokens": 9},
        Embedding={"input_dim": 9, "output_dim": 4},
        HashedCrossing={"num_bins": 4},
        Hashing={"num_bins": 4},
        IntegerLookup={"vocabulary": [1, 2, 3]},
        ReversibleEmbedding={"input_dim": 9, "output_dim": 4},
        StringLookup={"vocabulary": ["a"]},
        TextVectorization={"vocabulary": ["a"]},
    ),
    **_by(
        lambda: [_floats(10, 6), _floats(10, 6)],
        AdditiveAttention={"dropout": 0.2, "seed": 1},
        Attention={"dropout": 0.2, "seed": 1},
    ),
    **_by(
        lambda: [_floats(400)],
        MelSpectrogram={"fft_length": 64, "sequence_stride": 32},
    ),
    **_by(
        lambda: [_floats(400, 1)],
        STFTSpectrogram={"frame_length": 64, "frame_step": 32, "window": None},
    ),
}

# Layers that take other layers, or several arguments.
_COMPOSED: dict[str, tuple[Callable[[], Inputs], Callable[..., Any]]] = {
    "Bidirectional": (_sequences, lambda x: layers.Bidirectional(layers.LSTM(3))(x)),
    "GRUCell": (_sequences, lambda x: layers.RNN(layers.GRUCell(4))(x)),
    "GroupQueryAttention": (
        _sequences,
        lambda x: layers.GroupQueryAttention(4, 4, 2, dropout=0.2, seed=1)(x, x),
    ),
    "LSTMCell": (_sequences, lambda x: layers.RNN(layers.LSTMCell(4))(x)),
    "Lambda": (_vectors, lambda x: layers.Lambda(lambda y: y * 2.0)(x)),
    "MultiHeadAttention": (
        _sequences,
        lambda x: layers.MultiHeadAttention(2, 4, dropout=0.2, seed=1)(x, x),
    ),
    "Pipeline": (
        _images,
        lambda x: layers.Pipeline([layers.RandomFlip(seed=1), layers.Rescaling(0.5)])(
            x
        ),
    ),
    "RNN": (_sequences, lambda x: layers.RNN(layers.SimpleRNNCell(4))(x)),
    "SimpleRNNCell": (_sequences, lambda x: layers.RNN(layers.SimpleRNNCell(4))(x)),
    "SpectralNormalization": (
        _vectors,
        lambda x: layers.SpectralNormalization(layers.Dense(4))(x),
    ),
    "StackedRNNCells": (
        _sequences,
        lambda x: layers.RNN(
            layers.StackedRNNCells([layers.LSTMCell(4), layers.GRUCell(3)])
        )(x),
    ),
    "TimeDistributed": (
        _sequences,
        lambda x: layers.TimeDistributed(layers.Dense(4))(x),
    ),
}

# What a functional model of TensorFlow's has no use for.
_NO_LAYERS = {
    "Equalization",  # A symbolic call returns its input, which is a cycle.
    *("FlaxLayer", "InputLayer", "JaxLayer", "Layer", "MaxNumBoundingBoxes"),
    *("TFSMLayer", "TorchModuleWrapper", "Wrapper"),
}

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
    if name in _COMPOSED:
        kind, call = _COMPOSED[name]
    else:
        kind, arguments = _LAYERS[name]

        def call(*x: Any) -> Any:
            layer = getattr(layers, name)(**arguments)
            return layer(x[0] if len(x) == 1 else list(x))

    values = kind()
    given = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in values]
    return keras.Model(given, call(*given)), values


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


@pytest.mark.parametrize("name", sorted({*_LAYERS, *_COMPOSED} - REFUSED))
def test_micro_batches_give_plain_keras_rows(name: str) -> None:
    if not hasattr(layers, name):
        pytest.skip(f"This Keras has no {name}.")
    # Batch norm's moments are each micro-batch's own.
    sizes = [_ROWS] if name == "BatchNormalization" else [2, 4]
    plain, values = _model(name)
    expected = keras.tree.flatten(
        plain([tf.constant(x) for x in values], training=True)
    )
    found = _by_cells(*_model(name), sizes)
    for x, y in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_it_is_refused_by_name(name: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        _refuse(*_model(name))
    assert name.lower() in str(error.value).lower().replace("_", "")


def _refuse(model: keras.Model, values: Inputs) -> None:
    PipelinedModel(model, devices=1)
    _by_cells(model, values, [_ROWS])
