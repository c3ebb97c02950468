"""The version of lingvo_pipe. pyproject.toml reads it from this file."""

VERSION = "0.1.0"
