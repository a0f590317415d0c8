"""A plugin of dbt-duckdb whose sources are windows: streams, or statements, of one commit for the whole run.

In `profiles.yml`: ``plugins: [{module: windrow.dbt, alias: windrow, config: {warehouse: PATH}}]``.
"""

import threading
from typing import TYPE_CHECKING, Any

from windrow.errors import DefinitionError
from windrow.warehouse import Warehouse

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.snapshot import Snapshot

try:
    from dbt.adapters.duckdb.plugins import BasePlugin
except ModuleNotFoundError as _error:
    raise DefinitionError(
        f"windrow.dbt needs {_error.name}, which is not installed; install it with: pip install 'windrow[dbt]'"
    ) from None

_OPTIONS = ("stream", "window", "columns", "sql")


class Plugin(BasePlugin):
    """Loads the sources that name it by ``plugin: windrow``.

    The configuration has `warehouse`, a folder. A source may have `stream` (by default its own name), `window` and
    `columns`, or instead `sql`, a statement of the warehouse with windows of its own.
    """

    _snapshot: "Snapshot | None" = None

    def initialize(self, plugin_config: dict[str, Any]) -> None:
        """Open the warehouse."""
        path = plugin_config.get("warehouse")
        if not path:
            raise DefinitionError("the plugin windrow.dbt needs 'warehouse' in its config: the warehouse's folder")
        self._finding = threading.Lock()
        self._warehouse = Warehouse(path, create=False, read_only=True)

    def load(self, source_config: Any) -> "pa.Table":
        """Read a source; all sources of a run are of the commit that the first of them found."""
        options = {name: source_config.get(name) for name in _OPTIONS}
        if options["sql"] is not None and (options["window"] or options["columns"] or options["stream"]):
            raise DefinitionError(
                f"source {source_config.identifier!r} has 'sql' and also stream, window or columns; "
                "say these in its SQL"
            )
        with self._finding:  # dbt loads sources in several threads
            if self._snapshot is None:
                self._snapshot = self._warehouse.snapshot()
        if options["sql"] is not None:
            return self._snapshot.sql(options["sql"]).arrow()
        stream = options["stream"] or source_config.identifier
        return self._snapshot.scan(stream, options["window"], options["columns"]).read_all()
