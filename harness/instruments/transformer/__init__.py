"""Sizes of transformers, and the FLOP of their training steps, by one account for harness and suites."""
