"""DuckDB across a fork: a child can neither use nor close an inherited instance, whose threads stayed behind.

Closing one, also at the end of the interpreter, waits for those threads or crashes; so a child keeps what it inherited
until it ends, without using it.
"""

import ctypes
import os
import weakref
from _thread import LockType
from collections.abc import MutableMapping
from typing import Any

_holders: "weakref.WeakSet[Any]" = weakref.WeakSet()


def keep_in_child(holder: Any) -> None:
    """Never collect an object that holds an instance or cursors of it in a child that this process forks."""
    _holders.add(holder)


def _keep_all() -> None:
    for holder in list(_holders):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))
    _holders.clear()


os.register_at_fork(after_in_child=_keep_all)


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
