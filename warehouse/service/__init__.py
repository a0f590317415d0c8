"""The service: SQL and rows over the network, by HTTP and by Arrow Flight SQL, for tokens and their roles.

Nothing here is imported by ``import windrow``; it needs the extra ``windrow[serve]``, its client ``windrow[client]``.
"""
