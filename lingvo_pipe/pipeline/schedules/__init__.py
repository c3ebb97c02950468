"""Schedules as data: made, checked, stored, and given stash slots. Pure."""
