"""Layers of a pipeline, by Lingvo's names: `from lingvo_pipe import gpipe`."""

from lingvo_pipe.layers.sequential import FeatureExtractionLayer, SeqLayer
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.splitting.partition_layers import PartitionSequentialLayers

__all__ = [
    "FeatureExtractionLayer",
    "PartitionSequentialLayers",
    "PipeliningLayer",
    "SeqLayer",
]
