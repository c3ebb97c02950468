"""Protection against bad steps: skipped steps, loss spikes, batches left out."""
