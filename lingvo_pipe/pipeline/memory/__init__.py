"""Memory of a pipeline: weights, gradient accumulators and stashes."""
