"""Make what the report of the suite `published` alone shows: errors by kind of run, and their causes.

Its records have a reading per run and field of its score, whose `method` is the run's id; the condition
`runs` has what is known of each run.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.report.axes import LIGHT, MOST_LINES, SERIES, Tip, linear, x_title
from harness.report.figure import Drawing, Figure, alt_text, right_labels, y_title
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, OwnTableBlock, Spec
from harness.report.tables import DASH, Table, TableCell, percent, word
from harness.units import human, marked

CALCULATED, PUBLISHED = "calculated", "published"
FEWEST = 3
"""Runs of a device, a framework or a year from which on it has a row of its own."""

WORST = 20
"""Runs that the table of the worst has."""


class PublishedFacts(NamedTuple):
    """What is known of a run."""

    kind: str
    task: str  # pretrain or finetune
    source: str
    framework: str
    model: str
    device: str
    year: str
    page: str
    group: str = ""  # of runs of which one can choose
    set_up: str = ""  # a run's id that all of the same set-up share


def facts(index: ResultIndex) -> dict[str, PublishedFacts]:
    """Return what is known of each run that was asked."""
    found: dict[str, PublishedFacts] = {}
    for record in index.records:
        found |= {
            id: PublishedFacts(*one) for id, one in json.loads(record.conditions.get("runs", "{}")).items()
        }
    return found


def scores(index: ResultIndex, asked: str) -> pd.DataFrame:
    """Return a row per run: the fields of its score, published and predicted value, facts, record."""
    known = facts(index)
    frame = index.frame[index.frame["metric"].str.startswith(f"{asked}/") & index.frame["method"].isin(known)]
    table = frame.pivot_table(index="method", columns="metric", values="median", sort=False)
    table.columns = [name.removeprefix(f"{asked}/") for name in table.columns]
    of_runs = ("refused", "wrong", "caught", "depends", "error", "inside", "half_width", "level")
    for name in (*of_runs, *(("published", "expected") if asked == "choice" else ())):
        if name not in table:
            table[name] = np.nan
    table["cell"] = frame.groupby("method")["cell"].first()
    return table.join(pd.DataFrame.from_dict(known, orient="index", columns=PublishedFacts._fields))


HEADER = (
    "Runs", "Refused", "Firm and wrong", "Failures not called “fits”", "Depends", "Median error",
    "Nine in ten within", "Inside the 90 % interval", "Half width",
)  # fmt: skip


def figures(of: pd.DataFrame) -> Iterator[TableCell]:
    """Yield the cells of `HEADER` for some runs."""
    cell = of["cell"].iloc[0]
    yield TableCell(str(len(of)), cell)
    for name in ("refused", "wrong", "caught", "depends"):
        values = of[name].dropna()
        text = f"{percent(values.mean())} of {len(values)}" if name != "refused" else percent(values.mean())
        yield TableCell(marked(text, CALCULATED), cell) if len(values) else DASH
    errors, widths, inside = of["error"].abs().dropna(), of["half_width"].dropna(), of["inside"].dropna()
    for values, value in (
        (errors, errors.median()),
        (errors, errors.quantile(0.9)),
        (inside, inside.mean()),
        (widths, widths.median()),
    ):
        yield TableCell(marked(percent(float(value)), CALCULATED), cell) if len(values) else DASH


def bytes_by_kind(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per kind of run: how right the verdict is, and how far off the peak."""
    return by_kind(block, index, "bytes", HEADER)


def seconds_by_kind(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per kind of run: how far off the seconds of a step are."""
    header = tuple(name for name in HEADER if name not in HEADER[2:5])
    return by_kind(block, index, "seconds", header)


def by_kind(block: OwnTableBlock, index: ResultIndex, asked: str, header: Sequence[str]) -> Table:
    """Return a row per kind, and one of all, with some columns of `HEADER`."""
    table = scores(index, asked)
    places = [place for place, name in enumerate(HEADER) if name in header]
    groups = [(kind, table[table["kind"] == kind]) for kind in kinds(index)]
    rows = []
    for title, of in [*groups, ("All", table)]:
        if len(of):
            cells = list(figures(of))
            rows.append((word(title), *(cells[place] for place in places)))
    return Table(block.id, block.title, block.text, ("Kind of run", *header), tuple(rows))


def kinds(index: ResultIndex) -> list[str]:
    """Return the kinds of runs, in their order."""
    found = (one.conditions["kinds"] for one in index.records if "kinds" in one.conditions)
    return list(json.loads(next(found, "[]")))


def by_device(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per device."""
    return by_fact(block, index, "Device", lambda one: one["device"].map(chip))


def by_framework(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per framework."""
    return by_fact(block, index, "Framework", lambda one: one["framework"])


def by_source(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per source."""
    return by_fact(block, index, "Source", lambda one: one["source"])


def by_year(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per year of publication."""
    return by_fact(block, index, "Year", lambda one: one["year"].replace("", "not stated"))


CHIP = re.compile(r"\b(?:(?:RTX|TITAN) *(?:PRO )?\w+|G?[ABHLTV]\d+\w*|MI\d+\w*|TPU \w+)", re.IGNORECASE)
"""A device's name in a text that has its maker, form or memory, too."""


def chip(device: str) -> str:
    """Return a device's name without its memory and its maker."""
    found = CHIP.search(device)
    return found[0].upper() if found else "others"


def by_fact(
    block: OwnTableBlock, index: ResultIndex, heading: str, group_of: Callable[[pd.DataFrame], pd.Series]
) -> Table:
    """Return a row per group of at least `FEWEST` runs, the largest first: errors of bytes and of seconds."""
    tables = {asked: scores(index, asked) for asked in ("bytes", "seconds")}
    groups = {asked: dict(list(one.groupby(group_of(one)))) for asked, one in tables.items() if len(one)}
    sizes = Counter({name: len(of) for name, of in groups.get("bytes", {}).items() if len(of) >= FEWEST})
    rows = []
    for name, count in sizes.most_common():
        cells = [TableCell(str(count))]
        for asked in groups:
            of = groups[asked].get(name)
            shown = [] if of is None else list(figures(of))
            cells += [shown[place] for place in (1, 5, 7)] if shown else [DASH] * 3
        rows.append((word(name), *cells))
    header = (
        heading,
        "Runs",
        *(f"{asked}: {what}" for asked in groups for what in ("refused", "median error", "inside 90 %")),
    )
    return Table(
        block.id, block.title, block.text, tuple(one[0].upper() + one[1:] for one in header), tuple(rows)
    )


def choices(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per group of at least `FEWEST` runs: how near the best is the one to choose."""
    table = scores(index, "choice")
    rows: list[tuple[TableCell, ...]] = []
    shares: list[float] = []
    for group, of in table[table["group"] != ""].groupby("group", sort=False):
        if len(of) < FEWEST or not of["published"].max():
            continue
        alike = of.groupby(of["set_up"].where(of["set_up"] != "", of.index))
        of = of.assign(published=alike["published"].transform("mean"))
        chosen = of[of["expected"] == of["expected"].max()]
        share, best = chosen["published"].mean() / of["published"].max(), of.sort_values("published").iloc[-1]
        shares.append(float(share))
        rows.append(
            (
                word(str(group)),
                TableCell(str(len(of))),
                TableCell(str(int((of["published"] == 0).sum()))),
                TableCell(marked(human(of["published"].max(), "token/s"), PUBLISHED), best["cell"]),
                TableCell(marked(percent(shares[-1]), CALCULATED), chosen["cell"].iloc[0]),
            )
        )
    if rows:
        mean = TableCell(marked(percent(float(np.mean(shares))), CALCULATED))
        rows.append((word(f"Mean of {len(shares)} groups"), *[DASH] * 3, mean))
    header = ("Group", "Runs", "Of these failed", "Best, per GPU", "The chosen, of the best")
    return Table(block.id, block.title, block.text, header, tuple(rows))


def worst(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return the runs whose prediction is farthest off, by its ratio."""
    rows = []
    for asked, unit in (("bytes", "B"), ("seconds", "s")):
        table = scores(index, asked).dropna(subset=["error"])
        off = np.log1p(table["error"].clip(lower=-0.999)).abs()
        turned: defaultdict[str, list[str]] = defaultdict(list)
        for id, text in texts(index, f"{asked}/turned_by"):
            turned[id].append(text)
        for id in off.sort_values(ascending=False).index[: WORST // 2]:
            one = table.loc[id]
            rows.append(
                (
                    word(f"{one['model']}, {one['framework']}, {one['device']}"),
                    TableCell(marked(human(one["published"], unit), PUBLISHED), one["cell"]),
                    TableCell(marked(human(one["predicted"], unit), CALCULATED), one["cell"]),
                    TableCell(marked(percent(one["error"], signed=True), CALCULATED), one["cell"]),
                    word("; ".join(turned[id]) or "–"),
                    word(f"{one['source']} ({id})"),
                )
            )
    header = ("Run", "Published", "Predicted", "Error", "Depends on", "Source")
    return Table(block.id, block.title, block.text, header, tuple(rows))


def refusals(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return why runs are refused, the most frequent reason first."""
    return counted_by(
        block, index, ("bytes/refused_as", "seconds/refused_as"), ("Reason", "Bytes", "Seconds")
    )


def turns(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return what verdicts depend on, the most frequent first."""
    return counted_by(block, index, ("bytes/turned_by",), ("What may turn the verdict", "Runs"))


def counted_by(
    block: OwnTableBlock, index: ResultIndex, metrics: Sequence[str], header: Sequence[str]
) -> Table:
    """Return a row per text of some metrics with the number of runs that have it."""
    counts = {metric: Counter(text for _, text in texts(index, metric)) for metric in metrics}
    rows = [
        (word(text), *(TableCell(str(counts[metric][text])) for metric in metrics))
        for text, _ in sum(counts.values(), Counter()).most_common()
    ]
    return Table(block.id, block.title, block.text, tuple(header), tuple(rows))


def texts(index: ResultIndex, metric: str) -> Iterator[tuple[str, str]]:
    """Yield the id of a run and a text, of each reading of a metric whose `method` has both."""
    for record in index.records:
        for one in record.measurements:
            if one.metric == metric:
                id, _, text = one.method.partition(" ")
                yield id, text


def calibration(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Draw how many published values lie inside intervals of each level; None where none was compared."""
    lines: dict[str, tuple[pd.Series, str]] = {}
    for asked in ("bytes", "seconds"):
        table = scores(index, asked).dropna(subset=["level"])
        for title, of in [(f"{asked}, all", table), *by_task(asked, table)]:
            if len(of) >= WORST:
                lines[f"{title} ({len(of)})"] = of["level"], of["cell"].iloc[0]
    if not lines:
        return None
    drawing = Drawing(block.id, 430)
    axes = drawing.axes
    levels = np.linspace(0, 1, 41)
    axes.plot([0, 1], [0, 1], color=LIGHT["soft"], linewidth=1.2, dashes=(3, 3))
    ends = []
    for i, (name, (found, cell)) in enumerate(list(lines.items())[:MOST_LINES]):
        shares = [float((found <= level).mean()) for level in levels]
        drawing.line(list(levels), shares, i, 1.9)
        at_90 = float((found <= 0.9).mean())
        drawing.points([(0.9, at_90)], [Tip(f"{name}: {percent(at_90)} inside the 90 % interval", cell)], i)
        ends.append((shares[-2], name, SERIES[i]))
    linear(axes, "x", 0, 1, "1")
    linear(axes, "y", 0, 1, "1")
    x_title(axes, "Level of the interval")
    y_title(drawing, "Share of published values inside")
    right_labels(drawing, ends)
    return drawing.finish(block.title, block.text, alt_text(block.title, lines))


def by_task(asked: str, table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield pretraining and fine-tuning runs apart."""
    for task, title in (("pretrain", "pretraining"), ("finetune", "fine-tuning")):
        yield f"{asked}, {title}", table[table["task"] == task]
