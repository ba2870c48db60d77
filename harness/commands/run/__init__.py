"""`python -m harness`: words, configuration views, completion."""
