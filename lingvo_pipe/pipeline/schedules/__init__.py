"""Schedules as data: made, checked, and given places for what they keep. Pure."""
