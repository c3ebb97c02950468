"""Decoding: translations of a data set, and their scores."""
