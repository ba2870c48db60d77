"""Figures -> tables of text, which `markdown`, `page` and `terminal` only set.

Every figure carries its origin's mark; where there is none, a footnote says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.claim_model import Claim
from harness.records import Record, Status
from harness.report.frame import Figure, Frame, why
from harness.report.spec import Block, Spec
from harness.units import bare, best_unit, human, marked


class Text(NamedTuple):
    """One cell of a table: what it says, the record it comes from, how it is to look."""

    text: str
    cell: str = ""  # id of the record
    look: str = ""  # good | bad | warn | muted | word, or empty for a figure
    bar: float = 0.0  # share of the longest bar of its column, where the page draws one
    note: str = ""  # the mark of a footnote, after the text


class Table(NamedTuple):
    """A table ready to be set."""

    id: str
    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    notes: tuple[str, ...] = ()


class Notes:
    """Footnotes of one table: the same reason has one number."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, text: str) -> str:
        """The mark of the footnote that says `text`."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


def pivot(block: Block, spec: Spec, frame: Frame, claims: Sequence[Claim]) -> Table:
    """Rows by one key, each column a figure of its own."""
    fields, notes = block.fields, Notes()
    key = fields["rows"]
    fixed = {"workload": fields["where"]["workload"]} if fields["workload"] else {}
    columns = [
        {**one, **fixed}
        for column in fields["columns"]
        for one in _spread(column, spec, frame, fields["where"])
    ]
    rows = []
    for name in frame.values(key, fields["where"]):
        placed = [{**column, key: name} for column in columns]
        tried = [_entry(column, frame, claims, Notes()) for column in placed]
        if any(cell.cell or cell.look in ("bad", "warn") for cell in tried):
            cells = [_entry(column, frame, claims, notes) for column in placed]
            rows.append((Text(spec.name(key, name), look="word"), *cells))
    header = (fields["heading"] or key.capitalize(), *(column["title"] for column in columns))
    return Table(block.id, block.title, block.text, header, tuple(rows), tuple(notes.texts))


def failures(block: Block, spec: Spec, frame: Frame) -> Table:
    """Every cell that did not end `ok`, with its reason; those that ended alike in one row.

    Alike are repeats, and workloads on which a variant cannot run for one reason.
    """
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in frame.records:
        if record.status != Status.OK:
            workload = "" if record.status == Status.UNAVAILABLE else record.cell.workload
            alike.setdefault((workload, record.cell.optimization, why(record)), []).append(record)
    rows = tuple(
        (
            Text(_workloads(spec, records), look="word"),
            Text(spec.name("optimization", variant), look="word"),
            Text(records[0].status.replace("_", " "), records[0].cell.id, "bad"),
            Text((reason.partition(": ")[2] or "no reason given") + _repeats(records), look="word"),
        )
        for (_, variant, reason), records in alike.items()
    )
    text = block.text if rows else "Every cell ended well."
    return Table(block.id, block.title, text, ("Workload", "Optimization", "Ended as", "Reason"), rows)


def _workloads(spec: Spec, records: Sequence[Record]) -> str:
    return "; ".join(dict.fromkeys(spec.name("workload", record.cell.workload) for record in records))


def _repeats(records: Sequence[Record]) -> str:
    told = len(records) > 1 and records[0].status != Status.UNAVAILABLE
    return f" ({len(records)} repeats)" if told else ""


def percent(share: float, signed: bool = False) -> str:
    """A share of one as a percentage."""
    return f"{bare(share, '1', '%', signed)} %"


def _spread(
    column: Mapping[str, Any], spec: Spec, frame: Frame, where: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The column itself, or with `by` one for each value that has a figure of its metric."""
    by = column["by"]
    if not by:
        return [column]
    found = frame.values(
        by, {**where, **({"method": column["method"]} if column["method"] else {})}, column["metric"]
    )
    return [
        {**column, by: name, "title": (column["title"] or "{}").format(spec.name(by, name))} for name in found
    ]


def _entry(column: Mapping[str, Any], frame: Frame, claims: Sequence[Claim], notes: Notes) -> Text:
    if column["claim"]:
        first: Text | None = _quoted(column, claims)
    else:
        first = _figure(column, frame, notes)
    if first is None:
        return Text("")
    if not column["also"] or first.look:
        return first
    places = {key: column[key] for key in ("workload", "optimization", "method") if not column["also"][key]}
    second = _entry({**column["also"], **places}, frame, claims, notes)
    mark = first.text[-2:]
    if mark[0] == " " and second.text.endswith(mark):  # one origin, one mark
        return first._replace(text=f"{first.text[:-2]} ({second.text[:-2]}){mark}")
    return first._replace(text=f"{first.text} ({second.text})")


def _quoted(column: Mapping[str, Any], claims: Sequence[Claim]) -> Text | None:
    wanted = column["claim"].format(workload=column["workload"], optimization=column["optimization"])
    claim = next((claim for claim in claims if claim.id == wanted), None)
    return None if claim is None else Text(bare(claim.value, claim.unit, column["unit"]))


def _figure(column: Mapping[str, Any], frame: Frame, notes: Notes) -> Text:
    place = {key: column[key] for key in ("workload", "optimization", "metric", "method")}
    figure = frame.get(**place)
    if figure is None:
        return missing(frame, notes, place)
    if column["at"] != "median":
        figure = figure._replace(value=getattr(figure, column["at"]))
    if column["per"]:
        figure = divided(figure, frame, column["per"])
        if figure is None:
            return missing(frame, notes, {**place, "metric": column["per"], "method": ""})
    if column["relative_to"]:
        base = frame.get(**{**place, "optimization": column["relative_to"]})
        if base is None or base.value == 0:
            return missing(frame, notes, {**place, "optimization": column["relative_to"]})
        return Text(marked(percent(figure.value / base.value - 1, True), figure.origin), figure.cell)
    remark = frame.remark(figure.workload, figure.optimization, figure.method) if column["notes"] else ""
    note = f" {notes.mark(remark)}" if remark else ""
    return Text(show(figure, column["unit"], column["signed"]), figure.cell, note=note)


def divided(figure: Figure, frame: Frame, per: str) -> Figure | None:
    """The figure over another metric of its cell; None where that is not there."""
    by = frame.first(figure.workload, figure.optimization, per)
    return None if by is None or by.value == 0 else figure._replace(value=figure.value / by.value)


def show(figure: Figure, unit: str, signed: bool = False) -> str:
    """The figure in `unit` (auto: the one that reads best) with its origin\'s mark."""
    if unit == "auto":
        return marked(
            human(figure.value, figure.unit, best_unit(figure.value, figure.unit), signed), figure.origin
        )
    end = " %" if unit == "%" else ""
    return marked(bare(figure.value, figure.unit, unit, signed) + end, figure.origin)


def missing(frame: Frame, notes: Notes, place: Mapping[str, str]) -> Text:
    """What stands where a figure is not: a word, and the reason in a footnote."""
    return reasoned(notes, frame.reason(**place))


def reasoned(notes: Notes, reason: tuple[str, str]) -> Text:
    """A word in a figure's place, with its sentence as a footnote."""
    word, sentence = reason
    look = {"–": "muted", "not run": "muted", "unknown": "muted", "unavailable": "warn"}.get(word, "bad")
    return Text(f"{word} {notes.mark(sentence)}", look=look)
