"""Keras models as tasks of the trainer."""
