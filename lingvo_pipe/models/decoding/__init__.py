"""Decoding: from a model's scores for the next token to whole sequences."""
