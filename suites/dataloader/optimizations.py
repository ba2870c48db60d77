"""The optimizations of the suites dataloader and dataloader_balance that are functions of their settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suites.dataloader.batch import Subject
    from suites.dataloader.dataloader_balance import Subject as Assigned

MOST_LOADERS = 4


def disaggregated_balanced(subject: Subject) -> Subject:
    """The disaggregated loader, with documents assigned to groups so that their steps take equally long.

    They are assigned by their FLOP, the largest first.
    """
    from suites.dataloader.batch import flop_of_model

    model = subject.workload
    flop = flop_of_model(model.hidden_size, model.num_hidden_layers, model.num_attention_heads)
    balance = ["greedy", flop.linear, flop.quadratic]
    return replace(subject, loader="disaggregated", options={**subject.options, "balance": balance})


def disaggregated_autoscaled(subject: Subject) -> Subject:
    """The disaggregated loader, balanced, with as many source loaders as its steps need: 1 to 4."""
    balanced = disaggregated_balanced(subject)
    return replace(balanced, options={**balanced.options, "most_loaders": MOST_LOADERS})


def greedy(subject: Assigned) -> Assigned:
    """The largest item first, each to the group with the least cost so far (LPT)."""
    return replace(subject, method="greedy")


def karmarkar_karp(subject: Assigned) -> Assigned:
    """The largest differencing method of Karmarkar and Karp, for any number of groups."""
    return replace(subject, method="karmarkar_karp")


def random_order(subject: Assigned) -> Assigned:
    """Items are dealt in random order, which changes nothing for documents that arrive independently."""
    return replace(subject, method="random")
