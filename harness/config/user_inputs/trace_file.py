"""The user's own trace, `suite.trace=PATH`, as the only workload of a suite that reads traces.

The parent reads it once and breaks it down as the worker does, so that a file that cannot be used is refused
before a run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.config.validation import ConfigError, check_fields, check_relations, unknown
from harness.config.variants.optimizations import CONF, read_yaml


def workload_from_trace(suite: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the workload whose field `trace` is the path, completed from `suite.trace_defaults`.

    The path is made absolute, because a worker may have another working directory. Raises ConfigError, also
    for a trace that cannot be used.
    """
    fields, path = suite["fields"], Path(suite["trace"])
    if "trace" not in fields:
        able = ", ".join(suites_that_read_traces()) or "none"
        raise ConfigError(f"suite.trace={path}: this suite reads no trace; suites that do: {able}")
    if suite["workload_from"] is not None:
        raise ConfigError("suite.trace: suite.workload_from names the workload, too; give one of the two")
    for name in suite["trace_defaults"]:
        if name not in fields:
            raise unknown(f"suite.trace_defaults.{name}", name, fields)
    _check(path)
    source = {"source": f"the trace {path.name}"} if "source" in fields else {}
    given = {**suite["workload_defaults"], **source, **suite["trace_defaults"], "trace": str(path.absolute())}
    values = check_fields("suite.trace_defaults", given, fields)
    check_relations("suite.trace_defaults", values, fields)
    return {_name(path): values}


def suites_that_read_traces() -> list[str]:
    """Return the suites with `trace_defaults`, which complete a trace."""
    files = sorted((CONF / "suite").glob("*.yaml"))
    return [file.stem for file in files if "trace_defaults" in read_yaml(file)]


@cache
def trace_digest(path: str) -> str:
    """Return digits that change with the bytes of a trace, or of any file in a folder of traces."""
    digest = hashlib.sha256()
    files = sorted(Path(path).iterdir()) if Path(path).is_dir() else [Path(path)]
    for file in filter(Path.is_file, files):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def _name(path: Path) -> str:
    """Return the name of the workload: that of the file or folder without its suffixes."""
    return re.sub(r"\W+", "_", re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.resolve().name)).strip("_")


def _check(path: Path) -> None:
    from harness.instruments.traces.breakdown import breakdown
    from harness.instruments.traces.reading.kineto import read_traces
    from harness.instruments.traces.reading.trace import TraceError

    try:
        breakdown(read_traces(path))
    except TraceError as error:
        raise ConfigError(f"suite.trace: {error}") from None
