"""The trainer on the command line: flags, jobs, and errors as lines."""
