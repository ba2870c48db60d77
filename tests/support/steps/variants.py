"""A suite's tiny workloads, and a variant applied as the worker does it: module, then techniques."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf

from harness.config import protocols
from harness.config.optimizations import Variant, code_of
from harness.config.run import Run, compose_suite, load
from harness.config.validation import check_fields, check_relations
from harness.records import HostInfo
from suites.training import techniques

HOST = HostInfo("cpu", "CPU", 1, 2**34, 2)


@cache
def tiny_run(suite: str) -> Run:
    """Return the suite's run with its tiny workloads alone, each checked as any workload is."""
    config = compose_suite(suite, {"executor": "local"})
    plain: Any = OmegaConf.to_container(config.suite, resolve=True)
    tiny = {}
    for name, changes in plain["tiny"].items():
        fields = {**plain["workloads"][name], **changes}
        tiny[name] = check_fields(f"suite.tiny.{name}", fields, plain["fields"])
        check_relations(f"suite.tiny.{name}", tiny[name], plain["fields"])
    return replace(load([f"suite={suite}"])[0], workloads=tiny)


def module_of(suite: str, variant: Variant) -> ModuleType | None:
    return protocols.optimization_module(code_of(suite), variant.module)


def unavailable(suite: str, variant: Variant, host: HostInfo = HOST) -> str | None:
    module = module_of(suite, variant)
    reasons = [protocols.unavailable(module, host)] if module else []
    reasons += [
        getattr(techniques.load(name), "unavailable", lambda: None)()
        for name, _ in techniques.named(variant.techniques)
    ]
    return next(filter(None, reasons), None)


def applied(suite: str, variant: Variant, subject: Any) -> Any:
    module = module_of(suite, variant)
    if module is not None:
        subject = protocols.apply(module, subject, variant.settings)
    if variant.techniques:
        subject = import_module(code_of(suite).module).apply_techniques(subject, variant.techniques)
    return subject
