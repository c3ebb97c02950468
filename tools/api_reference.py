"""Writes the API reference as HTML pages, from the docstrings of the public names.

tools/bazel run //tools:api_reference -- --output=/tmp/api
"""

import argparse
import itertools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pdoc

# Each lists its public names in `__all__`.
PUBLIC_PACKAGES = (
    "lingvo_pipe",
    "lingvo_pipe.input",
    "lingvo_pipe.layers",
    "lingvo_pipe.models",
)


def write_api_reference(folder: Path) -> None:
    """Writes a page per public package, and an index."""
    pdoc.render.configure(docformat="google", show_source=False)
    # Each package without the modules below it.
    specs = ((name, rf"!{name}\..*") for name in PUBLIC_PACKAGES)
    pdoc.pdoc(*itertools.chain(*specs), output_directory=folder)
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(_without_dead_links(text), encoding="utf-8")


def _without_dead_links(page: str) -> str:
    """Replaces links to members that pdoc leaves out by the text of the links."""
    anchors = set(re.findall(r'id="([^"]*)"', page))

    def live(link: re.Match[str]) -> str:
        return link[0] if link[1] in anchors else link[2]

    return re.sub(r'<a [^>]*href="#([^"]*)"[^>]*>(.*?)</a>', live, page)


def main(arguments: Sequence[str]) -> None:
    """Runs the program with the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of pages")
    # `bazel run` changes the working directory and sets this variable to the user's.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    write_api_reference(parser.parse_args(arguments).output)


if __name__ == "__main__":
    main(sys.argv[1:])
