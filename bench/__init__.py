"""Benchmarks: the same rows, the same questions, in one run, for Windrow and what a user would pick instead.

Not part of the installed package; run from a checkout with `windrow bench` or `python -m bench`.
"""
