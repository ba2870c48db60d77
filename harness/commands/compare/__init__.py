"""Compare two results folders: `python -m harness.compare A B`. The command is in `__main__`."""
