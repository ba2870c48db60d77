"""Emulated networks: namespaces, shaped links, routes."""
