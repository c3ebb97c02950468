"""Batches of text: sentences in two languages, or documents."""
