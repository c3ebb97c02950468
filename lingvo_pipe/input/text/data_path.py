"""Where a file that params name lies."""

from __future__ import annotations

import os

from lingvo_pipe.hyperparams.suggest import did_you_mean


def data_path(
    name: str, data_dir: str | None, what: str = "A file of text", how: str = ""
) -> str:
    """Returns the path of a file: `name` itself, or if it is relative, in `data_dir`.

    Args:
        name: As the user wrote it; `~` is the home directory.
        data_dir: Where data lie; None: where the program was started.
        what: What the user is told that it must be there.
        how: What else may help if it is not: a sentence.

    Raises:
        ValueError: If there is no such file; with names that are near, if there are.
    """
    path = os.path.join(
        os.path.expanduser(data_dir or ""), os.path.expanduser(str(name))
    )
    if os.path.isfile(path):
        return path
    folder = os.path.dirname(path) or "."
    near = ""
    if os.path.isdir(folder):
        files = [entry.name for entry in os.scandir(folder) if entry.is_file()]
        near = did_you_mean(os.path.basename(path), files)
    raise ValueError(
        f"{what} must be there to be read; got {name!r}, and there is no file {path}."
        f"{near} Relative names begin at data_dir, which is {data_dir!r}; --data_dir "
        f"sets it.{how and ' '}{how}"
    )
