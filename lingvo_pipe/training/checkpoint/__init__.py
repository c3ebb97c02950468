"""Checkpoints: written, found, read and compared."""
