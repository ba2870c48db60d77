"""Seconds of a training step: collectives, operators, schedules."""
