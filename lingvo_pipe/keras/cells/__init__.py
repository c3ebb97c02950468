"""Keras models as calls and cells, and the variables of these."""
