"""Local parallelism: blocks of layers, each trained by its own loss."""
