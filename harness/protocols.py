"""What a suite and an optimization have to have, and how an optimization is applied."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.records import HostInfo, Json


def unavailable(module: ModuleType, host: HostInfo) -> str | None:
    """Return why an optimization cannot run on `host`; None where it can, or does not say."""
    reason: str | None = module.unavailable(host) if hasattr(module, "unavailable") else None
    return reason


def apply(module: ModuleType, subject: Any, settings: Json) -> Any:
    """Return the subject with the optimization applied: with its settings, where it has any to set."""
    if hasattr(module, "Settings"):
        return module.apply(subject, module.Settings(**settings))
    return module.apply(subject)
