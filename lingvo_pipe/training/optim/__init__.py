"""Learners: optimizers, learning rates, clipping, weight decay, averages, freezing."""
