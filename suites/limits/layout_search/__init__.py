"""The best layout of a training run, among many at once."""
