"""How long a sweep takes on this host, found out before it starts."""
