"""Runs of a pipeline: traced once, called with every mini-batch."""
