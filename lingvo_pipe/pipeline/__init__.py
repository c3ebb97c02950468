"""Pipelines: schedules as data, and the graph emitted from them."""
