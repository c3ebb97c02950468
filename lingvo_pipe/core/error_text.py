"""The text of an error for users, and the lines of their own code that led to it."""

import errno
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lingvo_pipe.core.error_causes import CALLED
from lingvo_pipe.core.errors import UserError

# Folders of our own code.
_OURS = (
    Path(__file__).resolve().parents[1],
    Path(__file__).resolve().parents[2] / "model_registry",
)

# Error numbers of disk problems -> remedy.
_DISK_REMEDIES = {
    errno.ENOSPC: "Free space",
    errno.EDQUOT: "Free space",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "Mount the disk for writing",
}

# The most lines of their own code that users see: the innermost ones.
_MAX_FRAMES = 4

# Folders of code that is neither ours nor the user's.
_INSTALLED = ("site-packages", "dist-packages")
_PYTHON = Path(sysconfig.get_path("stdlib")).resolve()

# A path at the end of a message, perhaps after a prefix such as "Failed to write:".
_PATH = re.compile(r"(?<!\S)/.*")

# Text that TensorFlow puts around the message of an operation that fails.
_AROUND = re.compile(
    r"Graph execution error:\s*"
    r"|Detected at node .* defined at \(most recent call last\):\n"
    r"(?:<stack traces unavailable>\n|[ \t].*\n|\n)*"
    r"|\{\{function_node [^}]*\}\}\s*"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
    r"|\s*\[\[\{\{node [^}]*\}\}\]\]|\s*\n\t \[\[[\w/]+\]\]"
    r"|\s*Hint: If you want to see a list of allocated tensors.*"
    r"|\s*\[Op:\w+\](?: name: ?\S*)?"
    r"|\d+ root error\(s\) found\.\s*\(0\) [A-Z_]+: |\n\s*\(1\) [A-Z_]+: [\s\S]*"
)

# A frame of the traceback of an error in a Python function that TensorFlow called.
_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.M)


def error_text(error: Exception) -> str:
    """Returns the text of an error, and below it the user's own code that led to it.

    A UserError's text is its message. Any other error's text begins with its type. An
    error in a Python function that TensorFlow called has the text that it would have
    without TensorFlow.
    """
    line = user_message(error)
    if line is not None:
        return line + frames_text(traceback.extract_tb(error.__traceback__))
    message, has_called, called = plain_message(str(error)).partition(CALLED)
    if has_called:
        frames = [
            traceback.FrameSummary(match[1], int(match[2]), match[3])
            for match in _FRAME.finditer(called)
        ]
        return " ".join(message.split()) + frames_text(frames)
    frames = list(traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:  # No frame contains it.
        message = error.msg
        frames.append(
            traceback.FrameSummary(error.filename, error.lineno, name="its source")
        )
    return f"{type(error).__name__}: {message}{frames_text(frames)}"


def user_message(error: Exception) -> str | None:
    """Returns the message of a UserError or of a disk problem's error, else None."""
    return str(error) if isinstance(error, UserError) else disk_problem(error)


def disk_problem(error: Exception) -> str | None:
    """Returns the message for an error such as a full disk, or None for others."""
    for number, remedy in _DISK_REMEDIES.items():
        path = _path_in(error, number)
        if path is not None:
            return (
                f"Cannot write {path or 'a file'}: '{os.strerror(number)}'. {remedy} "
                "and rerun the same command; earlier checkpoints are intact."
            )
    return None


def _path_in(error: Exception, number: int) -> str | None:
    """Returns the file that an error names, "" for none, or None for another errno."""
    if isinstance(error, OSError):
        return str(error.filename or "") if error.errno == number else None
    if not hasattr(error, "error_code"):  # Not an error of TensorFlow.
        return None
    before, reason, _ = str(error).partition(f"; {os.strerror(number)}")
    if not reason:
        return None
    line = plain_message(before).rpartition("\n")[2]
    path = _PATH.search(line)  # A path may have spaces.
    return path[0] if path else line


def plain_message(message: str) -> str:
    """Returns an operation's error message without TensorFlow's text around it."""
    return _AROUND.sub("", message).strip()


def frames_text(frames: Iterable[Any]) -> str:
    """Returns the user's stack frames, outermost first, as lines below a message.

    Frames are Python's or TensorFlow's. If our code called the user's code, the frames
    that called our code are left out.
    """
    flat = list(frames)
    first = next((i for i, x in enumerate(flat) if _is_in(x.filename, _OURS)), 0)
    within = [frame for frame in flat[first:] if _is_users(frame.filename)]
    user_frames = within or [frame for frame in flat if _is_users(frame.filename)]
    text = ""
    for frame in user_frames[-_MAX_FRAMES:]:
        text += f'\n  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        code = linecache.getline(frame.filename, frame.lineno).strip()
        text += f"\n    {code}" if code else ""
    return text


def _is_users(filename: str) -> bool:
    is_installed = set(_INSTALLED).intersection(Path(filename).resolve().parts)
    is_module = filename.endswith(".py")  # Not the launcher, or a part of Python.
    return is_module and not (is_installed or _is_in(filename, (*_OURS, _PYTHON)))


def _is_in(filename: str, folders: Iterable[Path]) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in folders)
