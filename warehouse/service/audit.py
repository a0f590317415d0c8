"""The audit: a file with one line for each statement, whatever becomes of the disk that it is on."""

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windrow.errors import StorageError


class AuditLog:
    """A file with one line of JSON for each statement, readable by its owner; statements go on if it cannot be written.

    Args:
        path: None: nothing is kept.
        say: Called when lines are lost, and when they are written again.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        self._path, self._say = path, say
        self._guard = threading.Lock()
        self._lost = 0
        try:
            self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise StorageError(f"the audit {path} cannot be written ({error.strerror}); give another --audit") from None

    def write(self, record: dict[str, Any]) -> None:
        """Append a line, all of it or nothing of it as far as the system can."""
        if self._file is None:
            return
        line = (json.dumps(record) + "\n").encode()
        with self._guard:
            try:
                if os.write(self._file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                if not self._lost:
                    self._say(f"the audit {self._path} cannot be written ({error.strerror}); statements go on without")
                self._lost += 1
                return
            if self._lost:
                self._say(f"the audit {self._path} is written again; {self._lost:,} lines were lost")
                self._lost = 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
