"""Registered translation models."""
