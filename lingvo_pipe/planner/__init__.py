"""The planner, which finds how to run a model on devices that may not exist yet.

Only `measured/` and `costs/traced_model.py` use TensorFlow.
"""
