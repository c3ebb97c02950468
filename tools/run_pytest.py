"""Runs pytest as a Bazel test, over the test files and options given as arguments.

No test collected is a failure, as is all else that pytest does not call a success.
"""

import os
import sys


def _arguments(environment: dict[str, str]) -> list[str]:
    """Returns pytest's options for what Bazel asks in the `environment`."""
    # Nothing is written beside the tests, which Bazel links to the source tree.
    arguments = ["--rootdir=.", "--config-file=pyproject.toml", "-pno:cacheprovider"]
    options = {
        "XML_OUTPUT_FILE": "--junit-xml={}",
        "TESTBRIDGE_TEST_ONLY": "-k={}",
        "TEST_TMPDIR": "--basetemp={}/pytest",
    }
    for variable, option in options.items():
        if value := environment.get(variable):
            arguments.append(option.format(value))
    return arguments


if __name__ == "__main__":
    # This folder must not be where tests find modules.
    del sys.path[0]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    # Data sets of the tests are prepared anew: a sandbox may not write to the home.
    if "TEST_TMPDIR" in os.environ:
        os.environ["TFDS_DATA_DIR"] = os.path.join(os.environ["TEST_TMPDIR"], "data")
    sys.dont_write_bytecode = True

    import pytest

    sys.exit(pytest.main(_arguments(dict(os.environ)) + sys.argv[1:]))
