"""Pipelines of layers on several devices."""
