"""The directory of a run, and the files in it."""
