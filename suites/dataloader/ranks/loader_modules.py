"""Loaders by name, and their specification as JSON.

It imports nothing large, as Ray's actors import this package.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.records import Unavailable
from suites.dataloader.batch import LoaderSpec, MixturePhase, Source

INSTALL = "pip install throughput-harness[dataloader]"


def loader_module(name: str) -> Any:
    """Return a loader's module; raises `Unavailable` where a library of it is missing."""
    try:
        return importlib.import_module(f"suites.dataloader.loaders.{name}")
    except ImportError as error:
        raise Unavailable(f"the loader {name} cannot be imported ({error}): {INSTALL}") from error


def plain(spec: LoaderSpec) -> dict[str, Any]:
    """Return a specification as plain data, for JSON."""
    return asdict(spec)


def specified(data: Mapping[str, Any]) -> LoaderSpec:
    """Return the specification of plain data."""
    sources = tuple(
        Source(name, tuple(files), format, samples, text_B)
        for name, files, format, samples, text_B in data["sources"]
    )
    mixture = tuple(MixturePhase(first, tuple(weights)) for first, weights in data["mixture"])
    return LoaderSpec(**{**data, "sources": sources, "mixture": mixture})
