"""The training step in which operations are replaced."""
