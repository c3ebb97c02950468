"""The layers and losses that mix the examples of a mini-batch."""
