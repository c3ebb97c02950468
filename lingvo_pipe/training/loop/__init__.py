"""The training loop: trains, reports, evaluates, saves, rolls back and stops."""
