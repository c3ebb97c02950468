"""Registered models that translate."""
