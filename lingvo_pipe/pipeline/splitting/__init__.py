"""Partition of layers into stages, balanced by their costs."""
