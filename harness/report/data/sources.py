"""Read what a report needs in addition to records: datasheets of devices, and the host's measured rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.claims.load import read_yaml
from harness.config.variants.optimizations import CONF
from harness.report.data.training_metrics import Datasheet, PeakRates


def peaks(environments: Iterable[Any] = (), conf: Path = CONF) -> PeakRates:
    """Return the datasheets of conf/hardware/, and the matmul rates that the records' environments have."""
    sheets = []
    for path in sorted((conf / "hardware").glob("*.yaml")):
        data = read_yaml(path)
        if data.get("device"):
            rates = {name: float(rate) for name, rate in data["matmul_FLOP_per_s"].items()}
            sheets.append(Datasheet(str(data["device"]), str(data["name"]), rates))
    return PeakRates(tuple(sheets), _measured(environments))


def _measured(environments: Iterable[Any]) -> Mapping[str, float]:
    """Return the rates of one thread times the cores, of the first environment that has any; else {}."""
    for one in environments:
        if isinstance(one, Mapping) and (rates := one.get("matmul_FLOP_per_s")):
            return {name: float(rate) * int(one["cores"]) for name, rate in rates.items() if rate}
    return {}
