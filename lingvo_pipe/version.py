"""The version of lingvo_pipe, which pyproject.toml takes from here. Pure."""

VERSION = "0.1.0"
