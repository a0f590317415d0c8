"""Chooses what is read of each stream, from a statement and a snapshot."""
