"""Segments in an object store: see docs/object-store.md."""
