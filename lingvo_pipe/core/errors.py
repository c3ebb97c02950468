"""Errors that a user can fix.

Each is of one of Python's kinds, too.
"""

from collections.abc import Sequence
from typing import Any


class UserError(Exception):
    """An error that a user can fix, from its whole `message` or from fields.

    Args:
        path: what is wrong, such as the path of a param: "task.pipeline.splits".
        expected: what is allowed there, such as "at most 8 stages (one per cell)".
        got: what was given.
        hint: what to do, as sentences.

    A program that ends with it has its `exit_code`.
    """

    exit_code = 1

    def __init__(
        self,
        message: str = "",
        *,
        path: str = "",
        expected: str = "",
        got: Any = None,
        hint: str = "",
    ) -> None:
        self.path, self.expected, self.got, self.hint = path, expected, got, hint
        if not message:
            message = f"{path}: expected {expected}, got {got!r}."
            message += f" {hint}" if hint else ""
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0])


class UserValueError(UserError, ValueError):
    """A value that is not allowed."""


class UserDamageError(UserValueError):
    """A file of a run that does not hold what was written there."""

    exit_code = 3


class UserNameError(UserValueError, AssertionError):
    """A name that is not allowed for a param or a key.

    Lingvo raises an AssertionError for it.
    """


class UserTypeError(UserError, TypeError):
    """A value of a type that is not allowed."""


class UserAttributeError(UserError, AttributeError):
    """An attribute that does not exist or cannot be set."""


class UserLookupError(UserError, LookupError):
    """A name that is not known."""


class UserKeyError(UserLookupError, KeyError):
    """A key that does not exist."""


class UserIndexError(UserLookupError, IndexError):
    """An index beyond the end."""


class UserAssertionError(UserError, AssertionError):
    """A result that differs from what it must be."""


class UserRuntimeError(UserError, RuntimeError):
    """A call at a time when it is not allowed."""


class UserNumberError(UserError, FloatingPointError):
    """A number that is not finite, or a loss that rises too far."""


class UserImportError(UserError, ImportError):  # type: ignore[misc]  # Its `path`.
    """A module that cannot be imported."""


class UserConnectionError(UserError, ConnectionError):
    """Another process that cannot be reached, or must not be."""


class UserClusterError(UserConnectionError):
    """A task of the cluster that is not there.

    The same command may succeed later.
    """

    exit_code = 4


def exit_code_of(error: Exception) -> int:
    """Returns the exit code of a program that an error ends."""
    return error.exit_code if isinstance(error, UserError) else UserError.exit_code


def raise_problems(problems: Sequence[str], hint: str = "") -> None:
    """Raises one UserValueError that lists all problems, if there are any."""
    if problems:
        end = f" {hint}" if hint else ""
        raise UserValueError(f"{'; '.join(problems)}.{end}")
