"""Seconds of a whole step: layers, communication, pipeline, update."""
