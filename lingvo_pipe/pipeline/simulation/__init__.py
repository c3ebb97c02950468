"""Schedules in time: simulated, measured, compared and drawn. Pure."""
