"""Training: tasks, steps, the loop, checkpoints, evaluation and reports."""
