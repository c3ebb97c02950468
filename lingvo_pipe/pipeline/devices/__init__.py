"""Devices by name, of this process and of worker tasks."""
