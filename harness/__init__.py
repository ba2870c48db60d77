"""Runs every cell of a sweep alone, measures it, judges it and reports it."""
