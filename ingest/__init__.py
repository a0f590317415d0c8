"""Spark ingest: the only place that knows Spark; `windrow.spark` is the door to it."""
