"""SQL over windows: the only place that talks SQL. Statements are read, confined, planned and run here."""
