"""Evaluation of trained weights."""
