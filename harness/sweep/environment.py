"""The machine, driver, library versions and commit of a run, without user or host names.

Read by the parent before the sweep, without importing any of the libraries that it names.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.code_fingerprint import ROOT
from harness.instruments.process import memory_bytes
from harness.records import digest

LIBRARIES = ("torch", "triton", "deepspeed", "transformers", "numpy", "liger-kernel", "jax")
"""Libraries whose version may affect a number."""

GIT_TIMEOUT_S = 5.0

PREFIX = "environment-"  # begin of the names of files that keep environments


class Gpu(NamedTuple):
    """One GPU: its model, and its memory in bytes."""

    name: str
    memory_B: int


class Environment(NamedTuple):
    """What numbers depend on besides the code; records refer to it by `digest`."""

    system: str  # kernel and architecture
    cpu: str
    cores: int  # cores that this process may use
    memory_B: int
    python: str
    versions: Mapping[str, str]
    gpus: tuple[Gpu, ...]
    driver: str  # the GPUs' driver; empty without GPUs
    commit: str  # empty outside a git checkout
    dirty: bool  # whether the checkout differs from its commit
    ranks: str = ""  # nodes and ranks per node of a launcher, or what a cluster was asked for; empty without
    matmul_FLOP_per_s: Mapping[str, float] = {}  # rates of one thread by dtype; empty where not measured

    @property
    def digest(self) -> str:
        """Return a digest of everything except the rates, which vary slightly between measurements."""
        return digest({name: value for name, value in self._asdict().items() if name != "matmul_FLOP_per_s"})

    @property
    def host(self) -> str:
        """Return a digest of machine and libraries for the identity of cells.

        It survives a reboot and a commit. Memory counts in GiB, because what the kernel reserves varies.
        """
        gpus = [(gpu.name, gpu.memory_B >> 30) for gpu in self.gpus]
        memory_GiB = round(self.memory_B / 2**30)
        launched = [self.ranks] if self.ranks else []
        parts = [self.cpu, self.cores, memory_GiB, self.python, self.versions, gpus, self.driver]
        return digest([*parts, *launched])

    @property
    def elsewhere(self) -> bool:
        """Return whether it is of machines that nobody has seen yet: those of a cluster."""
        return not self.cpu

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON keeps it, in environment-<digest>.json."""
        return self._asdict() | {"gpus": [gpu._asdict() for gpu in self.gpus]}


def describe(ranks: str = "") -> Environment:
    """Return this machine as it is now, with the ranks that an executor has."""
    gpus, driver = _gpus()
    commit, dirty = _commit(ROOT)
    return Environment(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_B=memory_bytes(),
        python=platform.python_version(),
        versions=versions(),
        gpus=gpus,
        driver=driver,
        commit=commit,
        dirty=dirty,
        ranks=ranks,
    )


def from_dict(data: Mapping[str, Any]) -> Environment:
    """Return the environment that `to_dict` returned; raises TypeError where it is not one."""
    return Environment(**data)._replace(gpus=tuple(Gpu(**gpu) for gpu in data["gpus"]))


def describe_elsewhere(ranks: str, gpus: int) -> Environment:
    """Return what is known of a cluster's nodes before a job runs: the libraries, taken to be those of here.

    `ranks` names what is requested of the cluster; `gpus`: how many per node, of a model that is not known.
    So the identity of cells does not depend on the machine that submits them.
    """
    unknown = Gpu("unknown", 0)
    here = describe(ranks)
    return here._replace(system="", cpu="", cores=0, memory_B=0, gpus=(unknown,) * gpus, driver="")


def kept_in(path: Path) -> Environment | None:
    """Return the environment that a file keeps; None where it keeps none."""
    try:
        return from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def environments(folder: Path) -> dict[str, Environment]:
    """Return the environments that a results folder keeps, by the digests under which records name them."""
    found = {path.stem.removeprefix(PREFIX): kept_in(path) for path in folder.glob(f"{PREFIX}*.json")}
    return {digest: one for digest, one in found.items() if one is not None}


def cpu_model() -> str:
    """Return the CPU's name, "unknown" where the system does not report it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of the installed `LIBRARIES`."""
    installed = {}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[library] = importlib.metadata.version(library)
    return installed


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """Return GPUs and their driver's version; none where NVML cannot be loaded."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return (), ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        sizes_B = [pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles]
        return tuple(map(Gpu, names, sizes_B)), pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


def _commit(root: Path) -> tuple[str, bool]:
    """Return the commit checked out at `root`, and whether files differ from it; ("", False) without one."""
    if not (root / ".git").exists():
        return "", False
    command = ["git", "-C", str(root), "--no-optional-locks", "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "", False
    lines = done.stdout.splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "")
    return commit, any(not line.startswith("#") for line in lines)
