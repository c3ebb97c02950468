"""The study's file: how it was asked for, and the rows that are finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lingvo_pipe.training.atomic_file import write_atomically
from tools.local_study.study_rows import Row, RowKey


class ResultsFile:
    """Rows by what they are of; each is on disk as soon as it is added."""

    def __init__(self, path: Path, settings: Mapping[str, Any]):
        """Reads the file, if there is one.

        Args:
            path: of the file, in a folder that exists.
            settings: what all rows have in common, of JSON's types.

        Raises:
            ValueError: if the file has rows of other settings, or is no such file.
        """
        self._path = path
        self._settings = dict(settings)
        self._rows: dict[RowKey, Row] = {}
        if path.exists():
            found, rows = _read(path)
            self._check(found)
            self._rows = {row.key: row for row in rows}

    @property
    def rows(self) -> dict[RowKey, Row]:
        """Those that are finished."""
        return dict(self._rows)

    def add(self, row: Row) -> None:
        """Adds a row, and writes the file whole or not at all."""
        self._rows[row.key] = row
        content = {
            "settings": self._settings,
            "rows": [each.to_dict() for each in self._rows.values()],
        }
        write_atomically(self._path, json.dumps(content, indent=1) + "\n")

    def _check(self, found: Mapping[str, Any]) -> None:
        other = {
            name: value
            for name, value in self._settings.items()
            if found.get(name) != value
        }
        if other:
            now = ", ".join(f"{name}={value}" for name, value in other.items())
            then = ", ".join(f"{name}={found.get(name)}" for name in other)
            raise ValueError(
                f"All rows of a study must be of the same settings; those in "
                f"{self._path} are of {then}, and now it is {now}. Choose another "
                "--out, or the same flags."
            )


def _read(path: Path) -> tuple[Mapping[str, Any], list[Row]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content["settings"], [Row.from_dict(row) for row in content["rows"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} must be the file of a study; it is not ({error!r}). Choose "
            "another --out."
        ) from error
