"""The optimizations of the dataloader_balance suite as functions of their settings."""

from __future__ import annotations

from dataclasses import replace

from suites.dataloader_balance.steps import Subject


def greedy(subject: Subject) -> Subject:
    """The largest item first, each to the group with the least cost so far (LPT)."""
    return replace(subject, method="greedy")


def karmarkar_karp(subject: Subject) -> Subject:
    """The largest differencing method of Karmarkar and Karp, for any number of groups."""
    return replace(subject, method="karmarkar_karp")


def random_order(subject: Subject) -> Subject:
    """Items are dealt in random order, which changes nothing for documents that arrive independently."""
    return replace(subject, method="random")
