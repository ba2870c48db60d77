"""When parameters are updated, by which optimizer, and where."""
