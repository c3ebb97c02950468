from .attention import MultiHeadAttentionLayer
from .batch_norm import BatchNormLayer
from .convolution import (
    Conv2DLayer,
    DepthwiseConv2DLayer,
    GlobalAveragePoolingLayer,
    PoolingLayer,
    SeparableConv2DLayer,
)
from .dense import ActivationLayer, FCLayer, FeedForwardLayer
from .dropout import DropoutLayer, DropPathLayer
from .embedding import TokenEmbeddingLayer
from .keras_layer import KerasLayer
from .layer_norm import LayerNormLayer
from .local_loss import LocalLossLayer
from .residual import ResidualLayer
from .sequential import FeatureExtractionLayer, FetchLayer, SeqLayer, SequentialLayer
