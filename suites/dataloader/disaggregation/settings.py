"""What all actors of a loader have in common, and what identifies the order of their data."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from typing import NamedTuple

from suites.dataloader.batch import LoaderSpec
from suites.dataloader.disaggregation.plan import BalanceSettings


class ActorSettings(NamedTuple):
    """What all actors of a loader have in common. `job`: names them; one loader of a name in a Ray namespace.

    `loaders`: source loaders at least, and `most_loaders` at most, where the autoscaler may start more.
    `shadows`: spare ones that take the place of one that died. `plan_ahead`: steps planned before they are
    asked for. `timeout_s`: how long a read, or another actor's answer, may take.
    """

    job: str
    balance: BalanceSettings = BalanceSettings()
    loaders: int = 1
    most_loaders: int = 1
    shadows: int = 0
    plan_ahead: int = 8
    most_bad_samples: int = 0
    timeout_s: float = 60.0


def digest_of(spec: LoaderSpec, settings: ActorSettings) -> str:
    """Return what identifies the order of the data: not where it is read, or how fast."""
    given = asdict(spec)
    names = ("mixture", "context_length", "documents_per_step", "dp_size", "cp_size", "seed")
    order = {name: given[name] for name in names}
    order["sources"] = [(one.name, one.samples, one.text_B) for one in spec.sources]
    order["balance"] = tuple(settings.balance)
    return sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()[:16]
