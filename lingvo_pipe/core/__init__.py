"""Shared by every package: errors, checks, paths and trees, near names, signals."""
