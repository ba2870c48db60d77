"""What cells import when they need it."""

from toy_suites.counted import note

note("preload")
