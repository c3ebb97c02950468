"""Local parallelism: blocks of layers that are trained each by a loss of its own."""
