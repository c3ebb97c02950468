"""Base classes of layers, by Lingvo's names: `from lingvo_pipe import base_layer`."""

from lingvo_pipe.layers.core.accumulators import Accumulator
from lingvo_pipe.layers.core.base_layer import BaseLayer, IsLayerParams

__all__ = ["Accumulator", "BaseLayer", "IsLayerParams"]
