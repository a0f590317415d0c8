"""Periodic queries: answered again and again as their windows slide, each due run delivered exactly once."""
