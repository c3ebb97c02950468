"""One loop per device: stages that receive, run, stash and send."""
