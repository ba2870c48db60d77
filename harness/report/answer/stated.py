"""Fill in the sentences and clauses of conf/report/ that state recorded values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from harness.report.data.speedup import compared
from harness.report.report_data import ReportData
from harness.report.tables.tables import show
from harness.units import marked, times


def stated(data: ReportData, key: str) -> Iterator[str]:
    """Yield the sentences of conf/report/ under `key`; none of which a value is missing."""
    for one in data.spec.answer[key]:
        if (text := _filled(data, one, "", "")) is not None:
            yield text


def set_up(data: ReportData, workload: str, variant: str) -> str:
    """Return what of the set-up decides the size of the effect, as a clause; "" where nothing is declared."""
    for one in data.spec.answer["set_up"]:
        if fnmatchcase(workload, one["workload"]):
            text = _filled(data, one, workload, variant)
            if text is not None:
                return text
    return ""


def _filled(data: ReportData, one: Mapping[str, Any], workload: str, variant: str) -> str | None:
    """Return the text with its values; None where one is missing."""
    values = [_shown(data, picked, workload, variant) for picked in one["values"]]
    return one["text"].format(*values) if all(values) else None


def _shown(data: ReportData, picked: Mapping[str, Any], workload: str, variant: str) -> str:
    """Return a PICKED as text; "" where it is missing."""
    place = picked["workload"] or workload, picked["optimization"] or variant
    if picked["condition"]:
        return data.index.condition(*place, picked["condition"])
    metric, method = picked["metric"], picked["method"]
    if picked["over"]:
        fields = {"metric": metric, "method": method, "baseline": picked["over"], "draws": picked["draws"]}
        comparison = compared(data.index, *place, fields)
        return comparison.text if comparison else ""
    value = data.index.get(*place, metric, method)
    if value is None or not picked["per"]:
        return show(value, picked["unit"]) if value else ""
    names = [name for name in (picked["plus"], picked["per"]) if name]
    *plus, per = (data.index.get(*place, name, method) for name in names)
    if per is None or None in plus:
        return ""
    whole = value.median + sum(one.median for one in plus if one)
    return marked(times(whole / per.median), per.origin)
