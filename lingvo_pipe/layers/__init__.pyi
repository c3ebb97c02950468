from .attention import MultiHeadAttentionLayer as MultiHeadAttentionLayer
from .batch_norm import BatchNormLayer as BatchNormLayer
from .convolution import (
    Conv2DLayer as Conv2DLayer,
    DepthwiseConv2DLayer as DepthwiseConv2DLayer,
    GlobalAveragePoolingLayer as GlobalAveragePoolingLayer,
    PoolingLayer as PoolingLayer,
    SeparableConv2DLayer as SeparableConv2DLayer,
)
from .dense import (
    ActivationLayer as ActivationLayer,
    FCLayer as FCLayer,
    FeedForwardLayer as FeedForwardLayer,
)
from .dropout import DropoutLayer as DropoutLayer, DropPathLayer as DropPathLayer
from .embedding import TokenEmbeddingLayer as TokenEmbeddingLayer
from .keras_layer import KerasLayer as KerasLayer
from .layer_norm import LayerNormLayer as LayerNormLayer
from .local_loss import LocalLossLayer as LocalLossLayer
from .residual import ResidualLayer as ResidualLayer
from .sequential import (
    FeatureExtractionLayer as FeatureExtractionLayer,
    FetchLayer as FetchLayer,
    SeqLayer as SeqLayer,
    SequentialLayer as SequentialLayer,
)
