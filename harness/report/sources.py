"""Read what a report needs besides records: datasheets of devices, and rates measured before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from harness.claims import read_yaml
from harness.report.training_metrics import Datasheet, Peaks

CONF = Path(__file__).resolve().parent.parent.parent / "conf"


def peaks(folder: Path, conf: Path = CONF) -> Peaks:
    """Return the datasheets of conf/hardware/ and the matmul rates of a probe in the results folder."""
    sheets = []
    for path in sorted((conf / "hardware").glob("*.yaml")):
        data = read_yaml(path)
        if data.get("device"):
            rates = {name: float(rate) for name, rate in data["matmul_FLOP_per_s"].items()}
            sheets.append(Datasheet(str(data["device"]), str(data["name"]), rates))
    return Peaks(tuple(sheets), _probed(folder))


def _probed(folder: Path) -> Mapping[str, float]:
    """Return the rates of the newest probe, {} without one."""
    for path in sorted(folder.glob("probe-*.json")):
        rates = json.loads(path.read_text(encoding="utf-8")).get("matmul_FLOP_per_s", {})
        return {name: float(rate) for name, rate in rates.items() if rate}
    return {}
