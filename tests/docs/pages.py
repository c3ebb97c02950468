"""The pages of the documentation, and the code and commands on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Under Bazel this file is a link into the source tree, where all files are.
SOURCE_ROOT = Path(__file__).resolve().parents[2]
# What the wheel holds.
PACKAGES = ("lingvo_pipe", "model_registry", "params")
PATHS = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
    *sorted((ROOT / "lingvo_pipe" / "docs").glob("*.md")),
    *sorted((ROOT / "lingvo_pipe/tools").glob("*/*.md")),
    *sorted((ROOT / "tools").glob("*/README.md")),
]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PATHS
}
README = PAGES["README.md"]
_BLOCK = re.compile(
    r"(?:`(my_models/\w+\.py)`[^\n]*:\n\n)?```python\n(.*?)```", re.DOTALL
)
_LINK = re.compile(r"\]\(([\w.#][^):]*)\)")


def page(name: str) -> str:
    """Returns a page of lingvo_pipe/docs."""
    return PAGES[f"lingvo_pipe/docs/{name}.md"]


def python_blocks(text: str) -> list[tuple[str, str]]:
    """Returns the Python code on a page: the file it is for, or "", and the code."""
    return _BLOCK.findall(text)


def relative_links(text: str) -> list[tuple[str, str]]:
    """Returns the path and the anchor, or "", of each link to another file or place."""
    parts = (link.partition("#") for link in _LINK.findall(text))
    return [(path, anchor) for path, _, anchor in parts]


def anchors(text: str) -> set[str]:
    """Returns the anchors that hosts of Markdown give to a page's headings."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", x).lower().replace(" ", "-") for x in headings}


def trainer_commands(text: str) -> list[str]:
    """Returns the flags of each command on a page that starts the trainer."""
    return re.findall(r"^    lingvo_pipe train (--\w.*)$", text, re.MULTILINE)
