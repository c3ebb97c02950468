"""Image classification: the task, its auxiliary classifier and its images."""
