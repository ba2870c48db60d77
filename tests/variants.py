"""A variant applied to a subject as the worker does it: module, then techniques."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from harness import protocols
from harness.optimizations import Variant
from harness.records import HostInfo

HOST = HostInfo("cpu", "CPU", 1, 2**34, 2)


def module_of(suite: str, variant: Variant) -> ModuleType | None:
    name = f"suites.{suite}.{variant.module}"
    return import_module(name) if find_spec(name) else None


def unavailable(suite: str, variant: Variant, host: HostInfo = HOST) -> str | None:
    module = module_of(suite, variant)
    return protocols.unavailable(module, host) if module else None


def applied(suite: str, variant: Variant, subject: Any) -> Any:
    module = module_of(suite, variant)
    if module is not None:
        subject = protocols.apply(module, subject, variant.settings)
    if variant.techniques:
        subject = import_module(f"suites.{suite}").apply_techniques(subject, variant.techniques)
    return subject


def session_of(suite: str, variant: Variant, subject: Any) -> Any:
    """Apply the variant and start its session."""
    return protocols.prepared(import_module(f"suites.{suite}"), applied(suite, variant, subject))
