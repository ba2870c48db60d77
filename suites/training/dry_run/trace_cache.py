"""Timelines of dry runs, kept in the user's cache folder: the same step is not traced again.

A file is named by a digest of all that decides a trace: the step, the simulated device, this project's
sources, and the versions of the libraries that run. `HARNESS_TRACES` names another folder, or is "off".
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.instruments.memory.memory_timeline import Timeline, from_bytes, to_bytes
from suites.training.step import TrainingStep

VARIABLE = "HARNESS_TRACES"
"""Environment variable: the folder of traces, or "off"."""

FOLDER = "throughput-harness/traces"
"""Below the user's cache folder."""

MOST_B = 256 * 1024**2
"""Bytes of all traces. Those that were not used for the longest time are removed first."""

KEPT_SHARE = 0.8
"""Share of `MOST_B` that is left when traces are removed, so that not every new one removes others."""

STALE_S = 3600.0
"""Age of an unfinished file after which no process is writing it."""

LIBRARIES = ("torch", "transformers", "triton", "deepspeed", "torchao", "liger-kernel", "bitsandbytes")
"""Packages whose code steps run."""

SOURCES = ("harness/instruments", "suites/training")
"""Folders of this project's code that a dry run can reach."""

APART = ("layouts", "step_time", "account_engine.py", "of_question.py", "seconds_engine.py")
"""What of suites/training no dry run reaches: the account and seconds. A test follows the imports."""

REACHED = ("layouts/__init__.py", "layouts/layout.py", "layouts/room.py")
"""What of `APART` a dry run takes constants from."""

ROOT = Path(__file__).resolve().parents[3]


class TraceCache:
    """Traces in a folder that other processes may use at the same time."""

    def __init__(self, folder: Path, most_B: int = MOST_B) -> None:
        self.folder, self.most_B = folder, most_B

    def timeline(self, key: str, trace: Callable[[], Timeline]) -> Timeline:
        """Return the timeline of a key, which `trace` makes where the folder has none that can be read."""
        path = self.folder / f"{key}.timeline"
        with suppress(OSError, ValueError):
            found = from_bytes(path.read_bytes())
            os.utime(path)
            return found
        made = trace()
        with suppress(OSError):
            self._write(path, to_bytes(made))
        return made

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file as a whole, so that no other process sees part of it; make room for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room(len(content))
        number, unfinished = tempfile.mkstemp(".unfinished", dir=self.folder)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
            os.replace(unfinished, path)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise

    def _make_room(self, size_B: int) -> None:
        """Remove traces until as many bytes more are allowed, and what processes that died left behind."""
        files = []
        for path in self.folder.iterdir():
            with suppress(OSError):  # another process removed it
                status = path.stat()
                if path.suffix == ".timeline":
                    files.append((status.st_mtime, status.st_size, path))
                elif status.st_mtime < time.time() - STALE_S:
                    path.unlink()
        total_B = size_B + sum(each_B for _, each_B, _ in files)
        if total_B <= self.most_B:
            return
        for _, each_B, path in sorted(files):
            path.unlink(missing_ok=True)
            total_B -= each_B
            if total_B <= self.most_B * KEPT_SHARE:
                return


def user_cache() -> TraceCache | None:
    """Return the cache in the user's folder; None where `HARNESS_TRACES` is "off" or no folder is known."""
    named = os.environ.get(VARIABLE, "")
    if named == "off":
        return None
    if named:
        return TraceCache(Path(named))
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(home).is_absolute():  # as the XDG Base Directory Specification asks for
        try:
            home = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return TraceCache(Path(home) / FOLDER)


def key_of(
    step: TrainingStep, device: Any, rank: int, full: bool, reserved: bool, first_step: bool
) -> str | None:
    """Return the key of a trace; None for a step that runs code whose changes are not seen here.

    `device`: a `dry_run.Device`; its allocator's options change no trace. The others: see `dry_run.dry_run`.
    """
    if device.name != "cuda" or step.workload.model is not None:
        return None
    decides = {
        "given": asdict(step.given),
        "workload": asdict(step.workload),
        "techniques": [[name, dict(settings)] for name, settings in step.techniques],
        "seed": step.seed,
        "ranks": [step.ranks, rank],
        "device": [str(one) for one in device._replace(allocator=None)],
        "trace": [full, reserved, first_step],
        "code": code_digest(),
        "libraries": library_versions(),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return what identifies this project's code that a dry run can reach, by its files."""
    digest = hashlib.sha256()
    for file in sources():
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def sources() -> list[Path]:
    """Return this project's files whose change makes traces anew."""
    training = ROOT / "suites/training"
    apart = {training / name for name in APART}
    reached = {training / name for name in REACHED}
    files = sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py"))
    return [file for file in files if file in reached or not apart & {file, *file.parents}]


@cache
def library_versions() -> tuple[str, ...]:
    """Return the versions of Python and of the libraries that steps run, "" for one that is not installed."""
    found = dict.fromkeys(LIBRARIES, "")
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return (sys.version, *found.values())
