"""Corpora that loaders read: which documents they contain, and how they are written."""
