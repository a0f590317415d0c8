"""DuckDB across a fork: a child can neither use nor close an inherited instance, whose threads stayed behind.

Closing one, also at the end of the interpreter, waits for those threads or crashes; so a child lets go without closing.
"""

import ctypes
import os
from _thread import LockType
from collections.abc import MutableMapping
from typing import Any


def forget_after_fork(instances: MutableMapping[Any, Any], lock: LockType) -> None:
    """Empty `instances` in every child that this process forks, without ever closing what was in it.

    Args:
        instances: Guarded by `lock`.
        lock: Held across every fork, so that no child inherits it taken.
    """

    def forget() -> None:
        for instance in instances.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(instance))
        instances.clear()
        lock.release()

    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=forget)
