"""Puts to one peer after another, in rotated order: what suits a switch (Triton-distributed)."""

from suites.overlap.symmetric_memory import apply

__all__ = ["apply"]
