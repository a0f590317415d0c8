"""DuckDB as Windrow uses it: instances, pooled cursors, Arrow sources, interrupts, types."""
