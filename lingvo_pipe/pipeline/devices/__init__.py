"""Devices by their names: of this process, and of workers."""
