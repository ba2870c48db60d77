"""The user's own trace, `suite.trace=PATH`, as the only workload of a suite that reads traces.

The parent reads it once and breaks it down as the worker does, so that a file that cannot be used is refused
before a run.

The user's own model code, `suite.model=package.module:function`, as far as the parent knows it.

The parent looks for the module's file and reads it, for a cell's identity; the worker alone imports it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from harness.config.code_fingerprint import source_digest
from harness.config.validation import ConfigError, check_fields, check_relations, shown, unknown
from harness.config.variants.optimizations import CONF, read_yaml
from harness.records import current_model


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


FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages, of which one file is read and not all that it imports."""


def check_model(where: str, value: Any) -> str:
    """Return `package.module:function` as it is called now; raises ConfigError where it has no such file."""
    if not isinstance(value, str) or not FORM.fullmatch(value):
        raise ConfigError(f"{where}={shown(value)}: expected package.module:function")
    model = current_model(value)
    module = model.partition(":")[0]
    if _spec(module) is None:
        raise ConfigError(f"{where}={value}: no module {module}; is its folder in PYTHONPATH?")
    try:
        model_digest(model)
    except ConfigError as error:
        raise ConfigError(f"{where}={value}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}={value}: the source of {module} cannot be read: {error}") from None
    return model


@cache
def model_digest(value: str) -> str:
    """Return digits that change with the module's source, and with those next to it that it imports."""
    module = value.partition(":")[0]
    spec = _spec(module)
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin)
    if file.suffix != ".py" or any(part in INSTALLED for part in file.parts):
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    depth = module.count(".") + (file.name == "__init__.py")
    return source_digest((module,), file.parents[depth])


def _spec(module: str) -> ModuleSpec | None:
    """Return where Python would import a module from, without importing its packages; None: nowhere."""
    spec, path, name = None, None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec
