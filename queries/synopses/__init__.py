"""Mergeable partial aggregates per slot, from which standing queries are answered."""
