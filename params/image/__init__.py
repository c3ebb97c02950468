"""Registered models of images."""
