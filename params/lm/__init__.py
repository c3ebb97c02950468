"""Registered language models."""
