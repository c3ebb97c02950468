"""Memory of a pipeline: weights, gradient accumulators, stashes and workspace."""
