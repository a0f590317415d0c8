"""Benchmarks: Windrow and what a user would take instead get the same rows and the same queries in one run.

Not part of the installed package; run from a checkout with `windrow bench` or `python -m bench`.
"""
