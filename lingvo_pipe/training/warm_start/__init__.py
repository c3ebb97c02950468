"""Warm start: a new run's initial weights, from checkpoints of other runs."""
