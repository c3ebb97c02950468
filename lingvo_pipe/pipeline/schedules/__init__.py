"""Schedules as data: made, checked, stored, given stash slots. Needs no TensorFlow."""
