"""Timelines of schedules: simulated, measured, drawn. Needs no TensorFlow."""
