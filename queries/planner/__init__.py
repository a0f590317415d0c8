"""From a statement and a snapshot to what is read of each stream."""
