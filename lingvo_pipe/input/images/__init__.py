"""Batches of classified images."""
