"""Every error that a user can cause, under one base class.

Each message is one sentence: what, which value, what to do.
"""

import errno
from typing import ClassVar

_TEMPORARY_ERRORS = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EINTR, errno.EBUSY, errno.ENFILE, errno.EMFILE, errno.ENOMEM)
)

MEMORY_ADVICE = (
    "ask for less, with a greater memory_limit, or let Spark run it: windrow.spark.sql() once, "
    "engine='spark' periodically"
)
"""What to do about a statement that does not fit in memory."""


class WindrowError(Exception):
    """Base of all errors that Windrow raises on purpose."""

    _temporary: ClassVar[bool] = False

    @property
    def temporary(self) -> bool:
        """Whether the same call may succeed later, although nobody changes what was asked or the data."""
        return self._temporary


def is_temporary(error: BaseException) -> bool:
    """Whether it makes sense to try again later: of our own errors, and of the operating system's."""
    if isinstance(error, WindrowError):
        return error.temporary
    return isinstance(error, OSError) and error.errno in _TEMPORARY_ERRORS


class DefinitionError(WindrowError, ValueError):
    """A stream, table or index was declared in a way that cannot work."""


class InvalidNameError(DefinitionError):
    """A name that could leave the warehouse's folder or that SQL could not hold."""


class StreamExistsError(DefinitionError):
    """A stream of that name exists already."""


class UnknownStreamError(WindrowError, KeyError):
    """No stream of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownTableError(WindrowError, KeyError):
    """No table of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownQueryError(WindrowError, KeyError):
    """No periodic query of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownSourceError(WindrowError, KeyError):
    """A source that the stream does not declare."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SchemaError(WindrowError, ValueError):
    """Rows that do not have the stream's columns and types."""


class BatchConflictError(WindrowError, ValueError):
    """A batch id that was used before, with other rows."""


class SourceBehindError(WindrowError):
    """A slide that a declared source has not reached yet."""

    _temporary = True


class ClockError(WindrowError, ValueError):
    """A time further ahead of the wall clock than the stream allows, or no time at all."""


class BusyError(WindrowError, TimeoutError):
    """Somebody else holds what was asked for, and did not let go in time."""

    _temporary = True


class WindowError(WindrowError, ValueError):
    """A window that the stream cannot answer."""


class GapError(WindrowError, ValueError):
    """A gap that is not there or cannot be, or a window that is not complete where it has to be."""


class SearchKeyError(WindrowError, ValueError):
    """A search key that does not fit the stream's key columns."""


class StorageError(WindrowError, OSError):
    """The disk said no: full, read-only, damaged or of the wrong kind."""

    @property
    def temporary(self) -> bool:
        """A full disk is, a read-only or damaged one is not."""
        return self.errno in _TEMPORARY_ERRORS

    def __str__(self) -> str:
        return str(self.strerror or super().__str__())


class FormatError(StorageError):
    """The folder holds a warehouse of another format, or none."""


class DamageError(StorageError):
    """A committed file is missing, truncated or altered."""


class ClosedError(WindrowError, ValueError):
    """The warehouse, snapshot or answer was closed, or belongs to the process that forked this one."""


class ViewError(WindrowError, ValueError):
    """A view that cannot be declared, or something asked of a view that only a stream can do."""


class SummaryError(WindrowError, ValueError):
    """A summary that cannot be declared, or that does not exist."""


class InUseError(WindrowError, ValueError):
    """Something that cannot be dropped, because views are derived from it."""


class QueryError(WindrowError, ValueError):
    """SQL that cannot be answered; `line` and `column` say where, when that is known."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class AccessError(WindrowError, PermissionError):
    """A role may not do what was asked, or there is no such role or token."""


class UnpinnedWarning(UserWarning):
    """A warehouse was opened by a process that cannot keep what it reads from being removed."""


class QueryTimeoutError(QueryError, TimeoutError):
    """A query that took longer than it was given."""

    _temporary = True


class ConfinementError(QueryError):
    """SQL that reaches for what a query may not touch."""
