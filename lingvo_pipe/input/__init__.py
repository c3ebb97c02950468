"""Data sets and the batches made from them."""
