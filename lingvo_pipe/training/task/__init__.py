"""Tasks: a model's pipeline, inputs, loss and training."""
