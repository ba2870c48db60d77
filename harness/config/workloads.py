"""The workloads of a run: the requested ones of the suite, or the user's own; every field checked.

A trace of the user's is broken down as the worker does, so that one that cannot be used is refused before a
run. The file of the user's own model code is read for a cell's identity; the worker alone imports it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from typing import Any

from harness.config.code_fingerprint import source_digest
from harness.config.hf_config import (
    FileWorkload,
    has_own_code,
    has_size,
    unknown_model_type,
    workload_from_file,
)
from harness.config.optimizations import applies, checked_alternatives, suites_with
from harness.config.validation import (
    NUMBERS,
    ConfigError,
    check_fields,
    check_relations,
    refuse_unknown,
    shown,
    unknown,
)


def workloads(
    suite: Mapping[str, Any], only: Sequence[str], device_memory_B: float
) -> dict[str, Mapping[str, Any]]:
    """Return the chosen workloads and those they need, each field checked.

    They need the smaller ones that stand in for them where bf16 is slow, and the reference workloads whose
    alternatives they meet, which come last. A file with a model, or a trace, is the only workload.
    """
    fields = suite["fields"]
    if suite["model"] is not None:
        suite = with_model(suite)
    if suite["trace"] is not None:
        return workload_from_trace(suite)
    if suite["workload_from"] is not None:
        return from_file(suite, device_memory_B)
    every: dict[str, Any] = suite["workloads"]
    for name in only:
        if name not in every:
            raise unknown(f"workloads=[{name}]", name, every)
    smaller, references = suite["slow_bf16_workloads"], suite["reference_workloads"]
    chosen = set(only or every.keys() - references.keys())
    chosen |= {name for name, larger in smaller.items() if chosen.intersection(larger)}
    checked: dict[str, Mapping[str, Any]] = {}
    for name in [n for n in every if n in chosen or n in references]:
        where = f"suite.workloads.{name}"
        if not isinstance(every[name], dict):
            raise ConfigError(f"{where}={shown(every[name])}: expected the fields of a workload")
        checked[name] = check_fields(where, every[name], fields)
        check_relations(where, checked[name], fields)
        if checked[name].get("model") is not None:
            model = check_model(f"{where}.model", checked[name]["model"])
            checked[name] = {**checked[name], "model": model}
    for name, given in references.items():
        needs = checked_alternatives(f"suite.reference_workloads.{name}", given, fields)
        if any(applies(needs, checked[one], gpu=True) for one in chosen if one not in references):
            chosen.add(name)
    last = sorted(checked, key=lambda name: name in references)
    return {name: checked[name] for name in last if name in chosen}


def with_model(suite: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite with `suite.model` as the model of each of its workloads; raises ConfigError."""
    if "model" not in suite["fields"]:
        raise ConfigError(f"suite.model={suite['model']}: this suite takes no model code")
    if suite["workload_from"] is not None:
        raise ConfigError("suite.model: suite.workload_from is a model too; give one of the two")
    model = check_model("suite.model", suite["model"])
    every = {
        name: {**one, "model": model} if isinstance(one, dict) else one
        for name, one in suite["workloads"].items()
    }
    return {**suite, "workloads": every}


def check_names(suite: Mapping[str, Any]) -> None:
    """Refuse names of workloads and fields that the suite does not have."""
    for key in ("reference_workloads", "slow_bf16_workloads"):
        for name, listed in suite[key].items():
            if not isinstance(listed, list) or not listed:
                raise ConfigError(f"suite.{key}.{name}={shown(listed)}: expected a list")
            larger = listed if key == "slow_bf16_workloads" else []
            for one in (name, *larger):
                if one not in list(suite["workloads"]):
                    raise unknown(f"suite.{key}.{name}", str(one), suite["workloads"])
    numbers = [name for name, field in suite["fields"].items() if field.get("type") in NUMBERS]
    for name in suite["size_fields"]:
        if name not in numbers:
            raise unknown(f"suite.size_fields=[{name}]", name, numbers)
    rounds = suite["fields"].get(suite["rounds_field"], {})
    if suite["rounds_field"] and not (
        suite["interleave"] and rounds.get("type") == "int" and rounds.get("at_least", 0) >= 2
    ):
        raise ConfigError(
            f"suite.rounds_field={suite['rounds_field']}: expected an integer field of at least 2, "
            "in a suite with interleave: true"
        )


def from_file(suite: Mapping[str, Any], device_memory_B: float) -> dict[str, Mapping[str, Any]]:
    """Return the workload that `suite.workload_from` describes, completed from `suite.hf_defaults`.

    It takes from the file the fields that the suite's Workload declares.
    """
    path, fields = suite["workload_from"], suite["fields"]
    if not suite["hf_defaults"]:
        able = ", ".join(suites_with("hf_defaults"))
        raise ConfigError(f"suite.workload_from: this suite takes no config.json; suites that do: {able}")
    refuse_unknown("suite.hf_defaults", suite["hf_defaults"], fields)
    set_defaults = {k: v for k, v in suite["hf_defaults"].items() if v is not None}
    given = check_fields("suite.hf_defaults", set_defaults, {k: fields[k] for k in set_defaults})
    name, shape, missing = _described(Path(path), given.get("num_hidden_layers"), suite["usual_seq_len"])
    described = {"device_memory_B": device_memory_B, **suite["workload_defaults"], **shape}
    nulls = dict.fromkeys(suite["hf_defaults"].keys() - described.keys())  # for the worker to find out
    values = {**{k: v for k, v in described.items() if k in fields}, **nulls, **given}
    values = check_fields("suite.hf_defaults", values, fields)
    free = {k: f for k, f in fields.items() if "multiple_of" not in f}  # a head's size is the file's
    check_relations("suite.hf_defaults", {**values, **dict.fromkeys(missing)}, free)
    return {name: values}


def _described(path: Path, num_hidden_layers: int | None, usual_seq_len: int) -> FileWorkload:
    """Return what a config.json describes; raises ConfigError, also for an architecture that nobody knows."""
    try:
        found = workload_from_file(path, num_hidden_layers, usual_seq_len)
    except ValueError as error:
        raise ConfigError(f"suite.workload_from: {error}") from None
    config = found.fields["hf_config"]
    if reason := unknown_model_type(config["model_type"], has_own_code(config)):
        raise ConfigError(f"suite.workload_from: {path}: {reason}")
    return found


def file_messages(suite: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in a sentence which sizes the file of `suite.workload_from` leaves to transformers."""
    if (path := suite["workload_from"]) is None:
        return ()
    found = _described(Path(path), None, suite["usual_seq_len"])
    model_type = found.fields["hf_config"]["model_type"]
    missing = [size for size in found.missing if has_size(model_type, size)]
    default = "default is" if len(missing) == 1 else "defaults are"
    return (f"{path} has no {', '.join(missing)}: transformers' {default} used",) if missing else ()


def workload_from_trace(suite: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the workload whose field `trace` is the path, completed from `suite.trace_defaults`.

    The path is made absolute, because a worker may have another working directory. Raises ConfigError, also
    for a trace that cannot be used.
    """
    from harness.instruments.traces import TraceError
    from harness.instruments.traces.breakdown import breakdown
    from harness.instruments.traces.kineto import read_traces

    fields, path = suite["fields"], Path(suite["trace"])
    if "trace" not in fields:
        able = ", ".join(suites_with("trace_defaults"))
        raise ConfigError(f"suite.trace={path}: this suite reads no trace; suites that do: {able}")
    if suite["workload_from"] is not None:
        raise ConfigError("suite.trace: suite.workload_from names the workload, too; give one of the two")
    refuse_unknown("suite.trace_defaults", suite["trace_defaults"], fields)
    try:
        breakdown(read_traces(path))
    except TraceError as error:
        raise ConfigError(f"suite.trace: {error}") from None
    source = {"source": f"the trace {path.name}"} if "source" in fields else {}
    given = {**suite["workload_defaults"], **source, **suite["trace_defaults"], "trace": str(path.absolute())}
    values = check_fields("suite.trace_defaults", given, fields)
    check_relations("suite.trace_defaults", values, fields)
    name = re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", path.resolve().name)
    return {re.sub(r"\W+", "_", name).strip("_"): values}


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


FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages, of which one file is read and not all that it imports."""


def check_model(where: str, value: Any) -> str:
    """Return `package.module:function`; raises ConfigError where there is no such file."""
    if not isinstance(value, str) or not FORM.fullmatch(value):
        raise ConfigError(f"{where}={shown(value)}: expected package.module:function")
    module = value.partition(":")[0]
    if _spec(module) is None:
        raise ConfigError(f"{where}={value}: no module {module}; is its folder in PYTHONPATH?")
    try:
        model_digest(value)
    except ConfigError as error:
        raise ConfigError(f"{where}={value}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}={value}: the source of {module} cannot be read: {error}") from None
    return value


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
    spec, path = None, None
    for name in accumulate(module.split("."), "{}.{}".format):
        spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec
