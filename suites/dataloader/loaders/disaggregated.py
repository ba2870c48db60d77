"""The disaggregated loader on Ray, after OVERLORD: source loaders, a planner, a constructor per group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from suites.dataloader.batch import LoaderSpec, PackedBatch, RankPlace, Subject

FORMATS = ("parquet", "jsonl", "array_record")
"""File formats, those that are preferred first."""

NEEDS_RAY = True

HAS_ACTORS = True
"""That may be killed, and a planner that may be asked by many."""

SOURCE_LOADERS = 1
"""Without the autoscaler: one process reads all sources."""


def apply(subject: Subject) -> Subject:
    """Return the subject with sources read once, by processes of their own."""
    return subject.changed(loader="disaggregated")


def batches(spec: LoaderSpec, place: RankPlace) -> Iterator[PackedBatch]:
    """Return the rank's batches without end; closing the iterator leaves Ray and its actors as they are."""
    from suites.dataloader.disaggregation.client import DisaggregatedLoader

    settings = settings_of(spec)
    with closing(DisaggregatedLoader(spec, place, settings, str(spec.options["ray_address"]))) as loader:
        yield from loader


def settings_of(spec: LoaderSpec) -> Any:
    """Return the settings that the specification's options describe."""
    from suites.dataloader.disaggregation.plan import ActorSettings, BalanceSettings

    given: dict[str, Any] = dict(spec.options)
    return ActorSettings(
        job="loader",
        balance=BalanceSettings(*given.get("balance", BalanceSettings())),
        loaders=int(given.get("loaders", SOURCE_LOADERS)),
        most_loaders=int(given.get("most_loaders", SOURCE_LOADERS)),
        shadows=int(given.get("shadows", 0)),
    )
