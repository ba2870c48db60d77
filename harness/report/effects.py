"""What each variant does to a quantity, held against the baseline: pays, costs, or no difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.report.frame import Figure, Frame
from harness.report.spec import Block, Spec
from harness.report.tables import Notes, Table, Text, missing, percent, show


class Effect(NamedTuple):
    """What a variant does to a quantity of which less is better, on one workload."""

    place: Mapping[str, str]
    figure: Figure | None
    base: Figure | None

    @property
    def ratio(self) -> float | None:
        """The variant's figure over the baseline's; None where either is not there."""
        if self.figure is None or self.base is None or self.base.value == 0:
            return None
        return self.figure.value / self.base.value


def effect_rows(block: Block, frame: Frame) -> list[Effect]:
    """One row a workload and variant that was run."""
    fields = block.fields
    rows = []
    for workload in frame.values("workload", fields["where"]):
        for variant in frame.values("optimization", fields["where"]):
            if (workload, variant) in frame.cells:
                own = {"workload": workload, "optimization": variant}
                own |= {"metric": fields["metric"], "method": fields["method"]}
                base = {**own, "optimization": fields["baseline"]}
                rows.append(Effect(own, frame.get(**own), frame.get(**base)))
    return rows


def effects(block: Block, spec: Spec, frame: Frame) -> Table:
    """Every variant against the baseline: its conditions, its figure, the change, and what that means."""
    fields, notes = block.fields, Notes()
    found = effect_rows(block, frame)
    longest = max((row.figure.value for row in found if row.figure), default=1.0)
    rows = []
    for row in found:
        workload, variant = row.place["workload"], row.place["optimization"]
        name = Text(spec.name("optimization", variant), look="word")
        stands = [Text(frame.condition(workload, variant, one)) for one in fields["conditions"]]
        for metric in fields["beside"]:
            other = frame.first(workload, variant, metric)
            stands.append(Text(show(other, "1"), other.cell) if other else Text("–", look="muted"))
        if row.figure is None or row.ratio is None:
            lacking = row.place if row.figure is None else {**row.place, "optimization": fields["baseline"]}
            rows.append(
                (name, *stands, missing(frame, notes, lacking), Text(""), Text("unavailable", look="muted"))
            )
            continue
        word, look = meaning(row.ratio, fields["same_within"], variant == fields["baseline"])
        change = "" if variant == fields["baseline"] else percent(row.ratio - 1, True)
        shown = Text(show(row.figure, fields["unit"]), row.figure.cell, bar=row.figure.value / longest)
        rows.append((name, *stands, shown, Text(change), Text(word, look=look)))
    unit = "" if fields["unit"] == "auto" else f", {fields['unit']}"
    figure = spec.name("metric", fields["metric"]) + unit
    header = (
        "Optimization",
        *fields["conditions"].values(),
        *fields["beside"].values(),
        figure,
        "Change",
        "Here it",
    )
    return Table(block.id, block.title, block.text, header, tuple(rows), tuple(notes.texts))


def meaning(ratio: float, same_within: float, baseline: bool = False) -> tuple[str, str]:
    """What an optimization does to a quantity of which less is better."""
    if baseline:
        return "is the baseline", "muted"
    if abs(ratio - 1) <= same_within:
        return "no difference", "muted"
    return ("pays", "good") if ratio < 1 else ("costs", "bad")
