"""Data sets included in the project."""
