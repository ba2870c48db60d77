"""Bytes of a training step, without allocating them: dry runs and closed estimates."""
