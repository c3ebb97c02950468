"""Finds the cause of a failed pipeline."""
