"""Suites that only the tests of the harness run; found through PYTHONPATH, never by registration."""
