"""The planner: how to run a model on devices that may not exist yet."""
