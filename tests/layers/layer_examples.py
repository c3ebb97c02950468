"""An example or more of every layer: params, shapes of inputs and of outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.activation import ActivationLayer
from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.base_layer import BaseLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.convolution import (
    Conv2DLayer,
    DepthwiseConv2DLayer,
    SeparableConv2DLayer,
)
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.layers.drop_path import DropPathLayer
from lingvo_pipe.layers.dropout import DropoutLayer
from lingvo_pipe.layers.feature_extraction import FeatureExtractionLayer, FetchLayer
from lingvo_pipe.layers.feed_forward import FeedForwardLayer
from lingvo_pipe.layers.forward_context import ForwardContext
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.pooling import GlobalAveragePoolingLayer, PoolingLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.layers.seq_layer import SeqLayer
from lingvo_pipe.layers.sequential import SequentialLayer
from lingvo_pipe.layers.token_embedding import TokenEmbeddingLayer
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.models.amoebanet.ends import (
    AuxiliaryHeadLayer,
    HeadLayer,
    StemLayer,
)
from lingvo_pipe.models.amoebanet.factorized_reduction import FactorizedReductionLayer

ACTIVATIONS = [
    *("NONE", "RELU", "RELU6", "LEAKY_RELU", "ELU", "SIGMOID", "TANH"),
    *("GELU", "SWISH", "SOFTPLUS"),
]
IMAGE = (4, 5, 6, 3)


class Example(NamedTuple):
    """A layer without a name; None stands for an input or output that is None."""

    params: InstantiableParams
    inputs: list[tuple[int, ...] | None]
    outputs: list[tuple[int, ...] | None]
    num_ids: int | None = None  # then the inputs are integers below it


def _conv(cls: type[BaseLayer], filter_shape: list[int], **params: Any) -> Any:
    return cls.Params().Set(filter_shape=filter_shape, **params)


def _pool(pooling_type: str, padding: str) -> InstantiableParams:
    return PoolingLayer.Params().Set(
        pooling_type=pooling_type,
        padding=padding,
        window_shape=[2, 3],
        window_stride=[2, 1],
    )


def _cell(**params: Any) -> InstantiableParams:
    return AmoebaCell.Params().Set(num_filters=4, num_in=6, **params)


def _network() -> list[InstantiableParams]:
    return [
        Conv2DLayer.Params().Set(filter_shape=[3, 3, 3, 4]),
        BatchNormLayer.Params().Set(dim=4),
        ActivationLayer.Params().Set(activation="SWISH"),
        DropoutLayer.Params().Set(keep_prob=0.8),
        GlobalAveragePoolingLayer.Params(),
        FCLayer.Params().Set(input_dim=4, output_dim=2),
    ]


def _attention(**params: Any) -> InstantiableParams:
    return MultiHeadAttentionLayer.Params().Set(
        dim=6, num_heads=2, dim_per_head=4, keep_prob=0.8, **params
    )


def _feed_forward(**params: Any) -> InstantiableParams:
    return FeedForwardLayer.Params().Set(dim=6, hidden_dim=10, **params)


EXAMPLES: dict[str, Example] = {
    **{
        f"activation_{name}": Example(
            ActivationLayer.Params().Set(activation=name), [(4, 3)], [(4, 3)]
        )
        for name in ACTIVATIONS
    },
    "dense": Example(
        FCLayer.Params().Set(input_dim=3, output_dim=5, activation="TANH"),
        [(4, 2, 3)],
        [(4, 2, 5)],
    ),
    "dense_without_bias": Example(
        FCLayer.Params().Set(input_dim=3, output_dim=5, has_bias=False),
        [(4, 3)],
        [(4, 5)],
    ),
    "conv": Example(
        _conv(Conv2DLayer, [3, 2, 3, 4], filter_stride=[2, 1], bias=True),
        [IMAGE],
        [(4, 3, 6, 4)],
    ),
    "conv_dilated": Example(
        _conv(Conv2DLayer, [2, 3, 3, 2], dilation_rate=[2, 1], padding="VALID"),
        [IMAGE],
        [(4, 3, 4, 2)],
    ),
    "depthwise": Example(
        _conv(DepthwiseConv2DLayer, [3, 2, 3, 2], filter_stride=[2, 2], bias=True),
        [IMAGE],
        [(4, 3, 3, 6)],
    ),
    "depthwise_dilated": Example(
        _conv(DepthwiseConv2DLayer, [3, 3, 3, 1], dilation_rate=[2, 1]),
        [IMAGE],
        [IMAGE],
    ),
    "separable": Example(
        _conv(SeparableConv2DLayer, [3, 3, 3, 5], depth_multiplier=2, bias=True),
        [IMAGE],
        [(4, 5, 6, 5)],
    ),
    "max_pool": Example(_pool("MAX", "SAME"), [IMAGE], [(4, 3, 6, 3)]),
    "avg_pool": Example(_pool("AVG", "SAME"), [IMAGE], [(4, 3, 6, 3)]),
    "avg_pool_valid": Example(_pool("AVG", "VALID"), [IMAGE], [(4, 2, 4, 3)]),
    "global_pool": Example(GlobalAveragePoolingLayer.Params(), [IMAGE], [(4, 3)]),
    # Without a loss around it, as here, its head does not run.
    "local_loss": Example(
        LocalLossLayer.Params().Set(
            head=ActivationLayer.Params().Set(activation="NONE")
        ),
        [(4, 3)],
        [(4, 3)],
    ),
    "dropout": Example(
        DropoutLayer.Params().Set(keep_prob=0.7), [(4, 5, 3)], [(4, 5, 3)]
    ),
    "drop_path": Example(
        DropPathLayer.Params().Set(keep_prob=0.5), [(4, 5, 3)], [(4, 5, 3)]
    ),
    "drop_path_scheduled": Example(
        DropPathLayer.Params().Set(keep_prob=0.3, num_steps=4),
        [IMAGE],
        [IMAGE],
    ),
    "batch_norm": Example(BatchNormLayer.Params().Set(dim=3), [IMAGE], [IMAGE]),
    "batch_norm_of_rows": Example(
        BatchNormLayer.Params().Set(dim=3), [(4, 3)], [(4, 3)]
    ),
    "sequential": Example(
        SequentialLayer.Params().Set(sub=_network()), [IMAGE], [(4, 2)]
    ),
    "sequential_repeated": Example(
        SequentialLayer.Params().Set(
            sub=[FCLayer.Params().Set(input_dim=3, output_dim=3, activation="TANH")],
            repeat=3,
        ),
        [(4, 3)],
        [(4, 3)],
    ),
    "seq": Example(
        SeqLayer.Params().Set(before_tpl=_network()[:2], cell_tpl=_network()[2:]),
        [IMAGE],
        [(4, 2)],
    ),
    "fetch": Example(FetchLayer.Params(), [IMAGE, None], [IMAGE, None]),
    "feature_extraction": Example(
        FeatureExtractionLayer.Params().Set(
            variable_name_prefix="image_",
            sub=[FetchLayer.Params().Set(name="in"), *_network()],
            num_act_inputs=1,
            act_fetch_layers=["image_sub_1", "image_in"],
        ),
        [IMAGE, (4, 7)],
        [(4, 2), (4, 7), (4, 5, 6, 4), IMAGE],
    ),
    "layer_norm": Example(LayerNormLayer.Params().Set(dim=3), [IMAGE], [IMAGE]),
    "layer_norm_without_weights": Example(
        LayerNormLayer.Params().Set(dim=5, has_scale=False, has_bias=False),
        [(4, 5)],
        [(4, 5)],
    ),
    "token_embedding": Example(
        TokenEmbeddingLayer.Params().Set(num_tokens=7, dim=6),
        [(4, 5)],
        [(4, 5, 6)],
        num_ids=7,
    ),
    "self_attention": Example(_attention(has_bias=False), [(4, 5, 6)], [(4, 5, 6)]),
    "cross_attention": Example(_attention(), [(4, 5, 6), (4, 3, 6)], [(4, 5, 6)]),
    "feed_forward": Example(
        _feed_forward(keep_prob=0.7, activation="GELU"), [(4, 5, 6)], [(4, 5, 6)]
    ),
    "norm_first": Example(
        ResidualLayer.Params().Set(dim=6, keep_prob=0.8, body=_feed_forward()),
        [(4, 5, 6)],
        [(4, 5, 6)],
    ),
    "norm_last": Example(
        ResidualLayer.Params().Set(dim=6, norm_first=False, body=_attention()),
        [(4, 5, 6), (4, 3, 6)],
        [(4, 5, 6)],
    ),
    "stem": Example(
        StemLayer.Params().Set(num_filters=4),
        [(4, 7, 7, 3)],
        [(4, 3, 3, 4), None, None],
    ),
    "small_stem": Example(
        StemLayer.Params().Set(num_filters=4, stride=1),
        [IMAGE],
        [(4, 5, 6, 4), None, None],
    ),
    "head": Example(
        HeadLayer.Params().Set(num_in=6, num_classes=3),
        [(4, 3, 3, 6), (4, 3, 3, 5), None],
        [(4, 3)],
    ),
    "auxiliary_head": Example(
        AuxiliaryHeadLayer.Params().Set(
            num_in=6, image_shape=[9, 6], num_classes=3, scale=0.05
        ),
        [(4, 9, 6, 6)],
        [(4, 3)],
    ),
    "factorized_reduction": Example(
        FactorizedReductionLayer.Params().Set(num_in=3, num_filters=5),
        [IMAGE],
        [(4, 3, 3, 5)],
    ),
    "normal_cell": Example(
        _cell(num_in_before=5, before_is_larger=True),
        [(4, 4, 4, 6), (4, 8, 8, 5), None],
        [(4, 4, 4, 16), (4, 4, 4, 6), None],
    ),
    "reduction_cell": Example(
        _cell(num_in_before=5, reduction=True),
        [(4, 4, 4, 6), (4, 4, 4, 5), None],
        [(4, 2, 2, 12), (4, 4, 4, 6), None],
    ),
    "first_cell": Example(
        _cell(reduction=True),
        [(4, 4, 4, 6), None, None],
        [(4, 2, 2, 12), (4, 4, 4, 6), None],
    ),
    "first_cell_of_a": Example(
        _cell(genotype="A"),
        [(4, 4, 4, 6), None, None],
        [(4, 4, 4, 16), (4, 4, 4, 6), None],
    ),
    "reduction_cell_of_c": Example(
        _cell(genotype="C", num_in_before=4, reduction=True),
        [(4, 5, 5, 6), (4, 5, 5, 4), None, (4, 3), (4,)],
        [(4, 3, 3, 24), (4, 5, 5, 6), None, (4, 3), (4,)],
    ),
}


def example_layer(example: str, **params: Any) -> Any:
    """The layer of an example, with further params set."""
    return EXAMPLES[example].params.Copy().Set(name="root", **params).Instantiate()


def example_inputs(example: str, dtype: tf.DType = tf.float32) -> list[Any]:
    """Normally distributed numbers, the same in every dtype; or integers."""
    _, shapes, _, num_ids = EXAMPLES[example]

    def draw(shape: tuple[int, ...], i: int) -> tf.Tensor:
        if num_ids is not None:
            return tf.random.stateless_uniform(shape, [i, 5], 0, num_ids, tf.int32)
        return tf.cast(tf.random.stateless_normal(shape, [i, 5]), dtype)

    return [None if shape is None else draw(shape, i) for i, shape in enumerate(shapes)]


def run(layer: Any, theta: Any, inputs: Any, **context: Any) -> list[tf.Tensor]:
    """All outputs but those that are None; in training, of step 3 by default."""
    context = {"step": 3, "first_example": 0, **context}
    with ForwardContext(**context):
        outputs = tf.nest.flatten(layer.FProp(theta, *inputs))
    return [output for output in outputs if output is not None]
