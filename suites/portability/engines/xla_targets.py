"""XLA's compiler for TPUs that need not be here: libtpu compiles for a topology that it describes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.records import HostInfo
from suites.portability import stablehlo
from suites.portability.extra import as_tried, installed, missing
from suites.portability.subject import Compiled, Engine, Subject

if TYPE_CHECKING:
    from suites.portability.capture.graph import Capture

TOPOLOGIES = {"tpu_v5e": "v5e:2x2", "tpu_v6e": "v6e:2x2"}
"""Targets: the topology that libtpu describes; one of its chips is compiled for."""

SETTINGS = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Variables that libtpu reads: it asks no cloud's server what machine this is, and takes no lock on a TPU."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`target`: a name of TOPOLOGIES."""

    target: str = "tpu_v5e"


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return missing("jax", "libtpu") or stablehlo.unavailable()


def apply(subject: Subject, settings: Settings) -> Subject:
    """Return the subject compiled by XLA for a target."""
    version = f"{installed('jaxlib')}, libtpu {installed('libtpu')}"
    engine = Engine("xla", partial(compiled, target=settings.target), settings.target, version=version)
    return replace(subject, engine=engine)


def compiled(capture: Capture, target: str) -> Compiled:
    """Return the size of the target's program; raises the compiler's error."""
    from suites.portability.engines.xla import TRIED, parsed

    text = stablehlo.without_other_dialects(capture.stablehlo)
    os.environ.update(SETTINGS)
    with as_tried("jaxlib", TRIED):
        from jax._src.lib import xla_client
        from jax.experimental import topologies

        topology = topologies.get_topology_desc(TOPOLOGIES[target], platform="tpu")
        device: Any = topology.devices[0]
        module, options = parsed(text), xla_client.CompileOptions()
    executable = device.client.compile(module, xla_client.DeviceList((device,)), options)
    return Compiled(None, size_B=int(executable.get_compiled_memory_stats().generated_code_size_in_bytes))
