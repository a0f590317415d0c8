"""The doubly partitioned index: partitioners, segments, directories, maintenance. Knows nothing of SQL or Spark."""
