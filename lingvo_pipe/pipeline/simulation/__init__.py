"""Timelines of schedules: simulated, measured, compared and drawn. Pure."""
