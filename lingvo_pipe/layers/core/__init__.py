"""The base of all layers: BaseLayer, weights, random streams, contexts."""
