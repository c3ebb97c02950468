"""Trained models for other programs."""
