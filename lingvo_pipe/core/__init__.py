"""Modules that all packages share: errors, checks, paths, trees, names, signals."""
