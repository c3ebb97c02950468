"""Devices of this process and of worker tasks: names, choice, setup, connection."""
