"""Views: derived streams whose rows have lifetimes of their own, maintained from new rows by their inputs' slides."""
