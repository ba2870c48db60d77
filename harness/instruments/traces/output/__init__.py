"""A trace's breakdown as tables, sentences, a page, and a file for Perfetto."""
