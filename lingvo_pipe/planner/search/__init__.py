"""A search for the fastest way to run a model that fits."""
