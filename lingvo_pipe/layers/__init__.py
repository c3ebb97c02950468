"""Layers: BaseLayer and the families built on it, one file a family."""
