"""A search for the fastest way to run a model within the devices' memory."""
