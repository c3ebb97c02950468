"""The training step: forward, backward and update of all state."""
