"""The costs of a model: time, memory and bytes sent, by layer."""
