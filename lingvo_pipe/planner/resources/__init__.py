"""The devices to run a model on, and the ways to run it."""
