"""The child process: it builds, checks and samples cells, and is the only part that imports suites."""
