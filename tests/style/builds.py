"""Targets in BUILD files, and the dependencies that imports need.

    python -m tests.style.builds

rewrites the `deps` of every library and test, from the imports of its sources.
BUILD files are Python except for the functions that they call, which are given here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Under Bazel this file is a link into the source tree.
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("lingvo_pipe", "model_registry", "params", "tests", "tools")
# Libraries whose modules a target's sources import or run by names that are data.
_FRONT = "//lingvo_pipe"  # The library of `import lingvo_pipe`, whose names are lazy.
_BY_NAME = {
    "//tests:pure_test": {_FRONT},
    "//lingvo_pipe": {
        "//lingvo_pipe/keras",
        "//lingvo_pipe/testing",
        "//lingvo_pipe:base_layer",
        "//lingvo_pipe:gpipe",
        "//lingvo_pipe:py_utils",
        "//lingvo_pipe:trainer_library",
    },
    "//lingvo_pipe/cli": {"//params"},
    "//params": {"//params/image", "//params/lm", "//params/mt"},
    "//lingvo_pipe/tools:commands_library": {
        "//lingvo_pipe/input/text",
        "//lingvo_pipe/input:prepare_library",
        "//lingvo_pipe/training/checkpoint",
        "//lingvo_pipe:trainer_library",
        "//lingvo_pipe/tools/doctor:examined",
        "//lingvo_pipe/tools/local_cluster:cluster",
        "//lingvo_pipe/tools/plan:command",
        "//lingvo_pipe/tools/port_check:checks",
    },
    "//tools/benchmarks": {_FRONT},
    "//lingvo_pipe/tools/local_cluster:cluster": {_FRONT},
    "//tools:api_reference_library": {_FRONT},
}
# Every test has these without naming them: see pytest_test.bzl.
_OF_EVERY_TEST = {"//tests/support:cases"}
_RULE = re.compile(r"^(?:py_library|pytest_test)\(\n.*?^\)\n", re.MULTILINE | re.DOTALL)
_DEPS = re.compile(r"^    deps = (?:\w+|\[.*?\]),\n", re.MULTILINE | re.DOTALL)


class Builds:
    """The targets of all BUILD files.

    Attributes:
        tests: arguments of each `pytest_test`, by label.
        libraries: arguments of each `py_library`, by label.
        sources: files of each target as paths below the root, or labels, by label.
        suites: labels in each `test_suite`, by label.
    """

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.libraries: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, list[str]] = {}
        self.suites: dict[str, list[str]] = {}
        self._packages = {
            path.parent
            for folder in FOLDERS
            for path in (ROOT / folder).rglob("BUILD")
            if path.is_file()
        }
        for package in sorted(self._packages):
            self._read(package)
        self._library_of = {
            file: label for label in self.libraries for file in self.files(label)
        }

    def _read(self, package: Path) -> None:
        folder = str(package.relative_to(ROOT))

        def label(name: str) -> str:
            return _full_label(name, folder)

        def source(name: str) -> str:
            is_file = not name.startswith(("//", ":"))
            return f"{folder}/{name}" if is_file else label(name)

        def record(rules: dict[str, dict[str, Any]]) -> Any:
            def rule(name: str, srcs: Sequence[str] = (), **others: Any) -> None:
                deps = {label(dep) for dep in others.pop("deps", ())}
                rules[label(name)] = {"deps": deps, **others}
                self.sources[label(name)] = [source(each) for each in srcs]

            return rule

        def test_suite(name: str, tests: Sequence[str], **_: Any) -> None:
            self.suites[label(name)] = [label(each) for each in tests]

        def nothing(*_: Any, **__: Any) -> None:
            pass

        functions: dict[str, Any] = {
            "alias": nothing,
            "exports_files": nothing,
            "filegroup": record({}),
            "glob": lambda include, exclude=(): self._glob(package, include, exclude),
            "load": nothing,
            "package": nothing,
            "py_binary": nothing,
            "py_library": record(self.libraries),
            "pytest_test": record(self.tests),
            "test_suite": test_suite,
        }
        exec((package / "BUILD").read_text(encoding="utf-8"), functions)

    def _glob(
        self, package: Path, include: Sequence[str], exclude: Sequence[str]
    ) -> list[str]:
        """Returns the files of a package, without the files of packages below it."""
        found, left_out = (
            {path for pattern in patterns for path in package.glob(pattern)}
            for patterns in (include, exclude)
        )
        below = {other for other in self._packages if package in other.parents}
        return sorted(
            str(path.relative_to(package))
            for path in found - left_out
            if not below.intersection(path.parents)
        )

    def files(self, label: str) -> Iterator[str]:
        """Yields the source files of a target, and of the targets among its sources."""
        for source in self.sources[label]:
            if source in self.sources:
                yield from self.files(source)
            elif source.startswith("//"):
                yield source.removeprefix("//").replace(":", "/")
            else:
                yield source

    def imported(self, label: str) -> set[str]:
        """Returns the libraries that a target's sources import."""
        own = set(self.files(label))
        needed = set(_BY_NAME.get(label, ()))
        for file in sorted(own):
            for module in _imports(ROOT / file):
                needed |= self._libraries_of(module, own)
                if module == "import lingvo_pipe":
                    needed.add(_FRONT)
        needed = {each for each in needed if not each.endswith(":package")}
        if label in self.tests:
            return needed - _OF_EVERY_TEST
        for file in own:  # A package comes with those around it.
            needed |= self._libraries_of(_parent(file), own)
        return needed - {label}

    def _libraries_of(self, module: str, own: set[str]) -> set[str]:
        path = module.replace(".", "/")
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if file in self._library_of and file not in own:
                return {self._library_of[file]}
        return set()


def _parent(file: str) -> str:
    """Returns the package whose `__init__.py` is imported before a file's module."""
    folder = Path(file).parent
    return str(folder.parent if file.endswith("__init__.py") else folder).replace(
        "/", "."
    )


def _imports(path: Path) -> Iterator[str]:
    """Yields the modules that a file imports, except modules for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            yield from (f"import {alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _full_label(name: str, folder: str) -> str:
    """Returns a label in full, without the target's name where the folder has it."""
    package, _, target = name.rpartition(":")
    package = package or (name if name.startswith("//") else f"//{folder}")
    target = "" if name.startswith("//") and ":" not in name else target
    return (
        package if target in ("", package.rpartition("/")[2]) else f"{package}:{target}"
    )


def _shown(deps: set[str], folder: str) -> str:
    """Returns the attribute `deps` as buildifier writes it."""
    names = [
        f":{dep.rpartition(':')[2]}" if dep.startswith(f"//{folder}:") else dep
        for dep in deps
    ]
    names.sort(key=lambda name: (name.startswith("//"), name.replace(":", "!")))
    if len(names) == 1:
        return f'    deps = ["{names[0]}"],\n'
    lines = "".join(f'        "{name}",\n' for name in names)
    return f"    deps = [\n{lines}    ],\n" if names else ""


def write_deps() -> None:
    """Rewrites the `deps` of all libraries and tests."""
    builds = Builds()
    for path in sorted(ROOT.rglob("BUILD")):
        folder = str(path.parent.relative_to(ROOT))

        def rewritten(rule: re.Match[str], folder: str = folder) -> str:
            (name,) = re.findall(r'^    name = "(\w+)"', rule[0], re.MULTILINE)
            label = _full_label(f":{name}", folder)
            text = _DEPS.sub("", rule[0])
            return (
                text.removesuffix(")\n")
                + _shown(builds.imported(label), folder)
                + ")\n"
            )

        if folder.split("/")[0] in FOLDERS:
            text = path.read_text(encoding="utf-8")
            written = _RULE.sub(rewritten, text)
            if written != text:
                path.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    write_deps()
