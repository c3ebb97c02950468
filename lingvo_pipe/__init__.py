"""A layer framework for TensorFlow around pipeline parallelism."""
