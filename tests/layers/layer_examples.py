"""Examples of every layer: params, shapes of inputs and of outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.layers.attention import MultiHeadAttentionLayer
from lingvo_pipe.layers.batch_norm import BatchNormLayer
from lingvo_pipe.layers.builder_layers import (
    ArgIndexLayer,
    BiasLayer,
    BranchLayer,
    FnLayer,
    ParallelLayer,
)
from lingvo_pipe.layers.convolution import (
    Conv2DLayer,
    DepthwiseConv2DLayer,
    GlobalAveragePoolingLayer,
    PoolingLayer,
    SeparableConv2DLayer,
)
from lingvo_pipe.layers.core.base_layer import BaseLayer
from lingvo_pipe.layers.core.forward_context import ForwardContext
from lingvo_pipe.layers.dense import ActivationLayer, FCLayer, FeedForwardLayer
from lingvo_pipe.layers.dropout import DropoutLayer, DropPathLayer
from lingvo_pipe.layers.embedding import TokenEmbeddingLayer
from lingvo_pipe.layers.graph_layer import GraphLayer
from lingvo_pipe.layers.layer_norm import LayerNormLayer
from lingvo_pipe.layers.local_loss import LocalLossLayer
from lingvo_pipe.layers.residual import ResidualLayer
from lingvo_pipe.layers.sequential import (
    FeatureExtractionLayer,
    FetchLayer,
    SeqLayer,
    SequentialLayer,
)
from lingvo_pipe.models.amoebanet.cell import AmoebaCell
from lingvo_pipe.models.amoebanet.operations import FactorizedReductionLayer
from lingvo_pipe.models.amoebanet.stem_and_head import (
    AuxiliaryHeadLayer,
    HeadLayer,
    StemLayer,
)

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


def _keeps(p: InstantiableParams, *shapes: tuple[int, ...] | None) -> Example:
    """Returns an example whose outputs have the inputs' shapes."""
    return Example(p, [*shapes], [*shapes])


def _of(cls: type[BaseLayer], **params: Any) -> InstantiableParams:
    return cls.Params().Set(**params)


def _pool(pooling_type: str, padding: str) -> InstantiableParams:
    p = _of(PoolingLayer, window_shape=[2, 3], window_stride=[2, 1])
    return p.Set(pooling_type=pooling_type, padding=padding)


def _cell(**params: Any) -> InstantiableParams:
    return _of(AmoebaCell, num_filters=4, num_in=6, **params)


def _network() -> list[InstantiableParams]:
    return [
        _of(Conv2DLayer, filter_shape=[3, 3, 3, 4]),
        _of(BatchNormLayer, dim=4),
        _of(ActivationLayer, activation="SWISH"),
        _of(DropoutLayer, keep_prob=0.8),
        GlobalAveragePoolingLayer.Params(),
        _of(FCLayer, input_dim=4, output_dim=2),
    ]


def _attention(**params: Any) -> InstantiableParams:
    return _of(
        MultiHeadAttentionLayer,
        dim=6,
        num_heads=2,
        dim_per_head=4,
        keep_prob=0.8,
        **params,
    )


def add(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return x + y


def _dense(num_out: int = 3, **params: Any) -> InstantiableParams:
    return _of(FCLayer, input_dim=3, output_dim=num_out, **params)


def _feed_forward(**params: Any) -> InstantiableParams:
    return _of(FeedForwardLayer, dim=6, hidden_dim=10, **params)


EXAMPLES: dict[str, Example] = {
    **{
        f"activation_{name}": _keeps(_of(ActivationLayer, activation=name), (4, 3))
        for name in ACTIVATIONS
    },
    "dense": Example(_dense(5, activation="TANH"), [(4, 2, 3)], [(4, 2, 5)]),
    "dense_without_bias": Example(_dense(5, has_bias=False), [(4, 3)], [(4, 5)]),
    "conv": Example(
        _of(Conv2DLayer, filter_shape=[3, 2, 3, 4], filter_stride=[2, 1], bias=True),
        [IMAGE],
        [(4, 3, 6, 4)],
    ),
    "conv_dilated": Example(
        _of(
            Conv2DLayer,
            filter_shape=[2, 3, 3, 2],
            dilation_rate=[2, 1],
            padding="VALID",
        ),
        [IMAGE],
        [(4, 3, 4, 2)],
    ),
    "depthwise": Example(
        _of(
            DepthwiseConv2DLayer,
            filter_shape=[3, 2, 3, 2],
            filter_stride=[2, 2],
            bias=True,
        ),
        [IMAGE],
        [(4, 3, 3, 6)],
    ),
    "depthwise_dilated": _keeps(
        _of(DepthwiseConv2DLayer, filter_shape=[3, 3, 3, 1], dilation_rate=[2, 1]),
        IMAGE,
    ),
    "separable": Example(
        _of(
            SeparableConv2DLayer,
            filter_shape=[3, 3, 3, 5],
            depth_multiplier=2,
            bias=True,
        ),
        [IMAGE],
        [(4, 5, 6, 5)],
    ),
    "max_pool": Example(_pool("MAX", "SAME"), [IMAGE], [(4, 3, 6, 3)]),
    "avg_pool": Example(_pool("AVG", "SAME"), [IMAGE], [(4, 3, 6, 3)]),
    "avg_pool_valid": Example(_pool("AVG", "VALID"), [IMAGE], [(4, 2, 4, 3)]),
    "global_pool": Example(_of(GlobalAveragePoolingLayer), [IMAGE], [(4, 3)]),
    # Without a loss around it, as here, its head does not run.
    "local_loss": _keeps(
        _of(LocalLossLayer, head=_of(ActivationLayer, activation="NONE")), (4, 3)
    ),
    "dropout": _keeps(_of(DropoutLayer, keep_prob=0.7), (4, 5, 3)),
    "drop_path": _keeps(_of(DropPathLayer, keep_prob=0.5), (4, 5, 3)),
    "drop_path_scheduled": _keeps(
        _of(DropPathLayer, keep_prob=0.3, num_steps=4), IMAGE
    ),
    "batch_norm": _keeps(_of(BatchNormLayer, dim=3), IMAGE),
    "batch_norm_of_rows": _keeps(_of(BatchNormLayer, dim=3), (4, 3)),
    "sequential": Example(_of(SequentialLayer, sub=_network()), [IMAGE], [(4, 2)]),
    "sequential_repeated": _keeps(
        _of(SequentialLayer, sub=[_dense(activation="TANH")], repeat=3), (4, 3)
    ),
    "seq": Example(
        _of(SeqLayer, before_tpl=_network()[:2], cell_tpl=_network()[2:]),
        [IMAGE],
        [(4, 2)],
    ),
    "fetch": _keeps(_of(FetchLayer), IMAGE, None),
    "feature_extraction": Example(
        _of(
            FeatureExtractionLayer,
            variable_name_prefix="image_",
            sub=[_of(FetchLayer, name="in"), *_network()],
            num_act_inputs=1,
            act_fetch_layers=["image_sub_1", "image_in"],
        ),
        [IMAGE, (4, 7)],
        [(4, 2), (4, 7), (4, 5, 6, 4), IMAGE],
    ),
    "fn": _keeps(_of(FnLayer, fn=tf.tanh), (4, 3)),
    "arg_index": Example(
        _of(ArgIndexLayer, idx=[2, 0]), [(4, 3), None, (4, 2)], [(4, 2), (4, 3)]
    ),
    "bias": _keeps(_of(BiasLayer, dims=3), (4, 2, 3)),
    "parallel": Example(
        _of(ParallelLayer, sub=[_dense(), _of(BiasLayer, dims=3)]),
        [(4, 3)],
        [(4, 3), (4, 3)],
    ),
    "branch": Example(
        _of(
            BranchLayer,
            body=_of(
                SequentialLayer,
                sub=[_dense(), _of(FetchLayer, name="saved"), _dense(name="last")],
            ),
            fetches=["saved"],
        ),
        [(4, 3)],
        [(4, 3), (4, 3)],
    ),
    "graph": _keeps(
        _of(
            GraphLayer,
            input_endpoints=["x", "y"],
            output_endpoints=["z", "h"],
            sub=[
                ("x->h", _dense(activation="TANH")),
                ("y->u", _of(BiasLayer, dims=3)),
                ("h,u->s", _of(FnLayer, fn=add)),
                ("s->z", _dense()),
            ],
        ),
        (4, 3),
        (4, 3),
    ),
    "layer_norm": _keeps(_of(LayerNormLayer, dim=3), IMAGE),
    "layer_norm_without_weights": _keeps(
        _of(LayerNormLayer, dim=5, has_scale=False, has_bias=False), (4, 5)
    ),
    "token_embedding": Example(
        _of(TokenEmbeddingLayer, num_tokens=7, dim=6), [(4, 5)], [(4, 5, 6)], num_ids=7
    ),
    "self_attention": _keeps(_attention(has_bias=False), (4, 5, 6)),
    "cross_attention": Example(_attention(), [(4, 5, 6), (4, 3, 6)], [(4, 5, 6)]),
    "feed_forward": _keeps(_feed_forward(keep_prob=0.7, activation="GELU"), (4, 5, 6)),
    "norm_first": _keeps(
        _of(ResidualLayer, dim=6, keep_prob=0.8, body=_feed_forward()), (4, 5, 6)
    ),
    "norm_last": Example(
        _of(ResidualLayer, dim=6, norm_first=False, body=_attention()),
        [(4, 5, 6), (4, 3, 6)],
        [(4, 5, 6)],
    ),
    "stem": Example(
        _of(StemLayer, num_filters=4), [(4, 7, 7, 3)], [(4, 3, 3, 4), None, None]
    ),
    "small_stem": Example(
        _of(StemLayer, num_filters=4, stride=1), [IMAGE], [(4, 5, 6, 4), None, None]
    ),
    "head": Example(
        _of(HeadLayer, num_in=6, num_classes=3),
        [(4, 3, 3, 6), (4, 3, 3, 5), None],
        [(4, 3)],
    ),
    "auxiliary_head": Example(
        _of(
            AuxiliaryHeadLayer, num_in=6, image_shape=[9, 6], num_classes=3, scale=0.05
        ),
        [(4, 9, 6, 6)],
        [(4, 3)],
    ),
    "factorized_reduction": Example(
        _of(FactorizedReductionLayer, num_in=3, num_filters=5), [IMAGE], [(4, 3, 3, 5)]
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
    """Returns the layer of an example, with further params set."""
    return EXAMPLES[example].params.Copy().Set(name="root", **params).Instantiate()


def example_inputs(example: str, dtype: tf.DType = tf.float32) -> list[Any]:
    """Returns normally distributed numbers, the same in every dtype; or integers."""
    _, shapes, _, num_ids = EXAMPLES[example]

    def draw(shape: tuple[int, ...], i: int) -> tf.Tensor:
        if num_ids is not None:
            return tf.random.stateless_uniform(shape, [i, 5], 0, num_ids, tf.int32)
        return tf.cast(tf.random.stateless_normal(shape, [i, 5]), dtype)

    return [None if shape is None else draw(shape, i) for i, shape in enumerate(shapes)]


def run(layer: Any, theta: Any, inputs: Any, **context: Any) -> list[tf.Tensor]:
    """Returns all outputs except None; by default of training step 3."""
    context = {"step": 3, "first_example": 0, **context}
    with ForwardContext(**context):
        outputs = tf.nest.flatten(layer.FProp(theta, *inputs))
    return [output for output in outputs if output is not None]
