"""Transformers that translate and that model language (Vaswani et al., 1706.03762)."""
