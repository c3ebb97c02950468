"""Profiles of steps in time and memory, and descriptions of models."""
