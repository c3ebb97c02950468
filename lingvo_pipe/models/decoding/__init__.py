"""Decoding of whole sequences, given a model's scores for the next token."""
