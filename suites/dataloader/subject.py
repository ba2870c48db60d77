"""What a variant of the dataloader suite is: one loader for a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from suites.dataloader.workload import Workload


@dataclass(frozen=True, slots=True)
class Subject:
    """One loader: the module `suites/dataloader/<loader>.py`, with options of its own (plain JSON)."""

    workload: Workload
    seed: int
    loader: str = "baseline_loader"
    options: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, **fields: Any) -> Subject:
        """Return the subject with other values of these fields."""
        return replace(self, **fields)

    @property
    def described(self) -> dict[str, Any]:
        """Return it as plain data, for ranks."""
        return asdict(self)
