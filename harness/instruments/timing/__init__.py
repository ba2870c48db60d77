"""Seconds per call, clocks."""
