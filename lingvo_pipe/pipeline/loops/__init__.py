"""One loop a device: stages that receive, run, keep and send."""
