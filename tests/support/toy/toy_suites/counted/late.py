"""What cells import when they need it."""

from toy_suites.counted.suite import note

note("preload")
