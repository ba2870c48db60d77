"""What a variant of the dataloader_balance suite is: lengths of documents and a method of assignment."""

from __future__ import annotations

from dataclasses import dataclass

from suites.dataloader_balance.workload import Workload
from suites.training.balance.balance import AssignmentMethod, DocumentCost


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload, the seed of its documents, what one costs, and how they are assigned to groups."""

    workload: Workload
    seed: int
    cost: DocumentCost
    method: AssignmentMethod = "in_order"
