"""The optimizations of the overlap suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.overlap.workload import Subject


def decomposed(subject: Subject) -> Subject:
    """The collective in chunks, each followed by its part of the computation (Wang et al., ASPLOS 2023)."""
    return replace(subject, algorithm="decomposed", experts_by="grouped")


def grouped(subject: Subject) -> Subject:
    """Products of all experts by one grouped GEMM, still after the collective."""
    return replace(subject, experts_by="grouped")


def low_latency(subject: Subject) -> Subject:
    """An all-gather by words that carry their own flag, in shared memory (NCCL's LL, Triton-distributed)."""
    return replace(subject, gather="low_latency")


def swizzle_full_mesh(subject: Subject) -> Subject:
    """Puts to all peers at once, chunk by chunk: what suits a link per pair (Triton-distributed)."""
    return replace(subject, algorithm="symmetric", order="full_mesh", experts_by="grouped")


def symmetric_memory(subject: Subject) -> Subject:
    """One-sided puts, a signal per chunk, and computation from the own part on (Triton-distributed)."""
    return replace(subject, algorithm="symmetric", experts_by="grouped")


def weight_gradient(subject: Subject) -> Subject:
    """Weight gradients are computed during the reduce-scatters of the backward pass."""
    return replace(subject, weight_gradient_overlaps=True)


def swizzle_ring(subject: Subject) -> Subject:
    """Puts to one peer after another, in rotated order: what suits a switch (Triton-distributed)."""
    return symmetric_memory(subject)
