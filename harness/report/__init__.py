"""Report judged records as Markdown, figures and one self-contained page.

The functions here read and write files; the rest is pure. pandas, jinja2, rich and matplotlib are imported
only when a report is written or a figure is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.claims.model import Verdict
from harness.config.optimizations import question_of, titles, workload_fields, workloads_of
from harness.config.validation import ConfigError
from harness.records import Record

if TYPE_CHECKING:
    from harness.report.report_data import ReportData


def gather(
    suite: str,
    records: Sequence[Record],
    verdicts: Sequence[Verdict],
    source: Path,
    planned: Mapping[str, str] | None = None,
    left_out: Sequence[str] = (),
    apart: Sequence[str] = (),
) -> ReportData:
    """Return the data of a report on the run whose records are in `source`; raises ConfigError.

    `planned` has the titles of its variants; those that it lacks come from conf/. `left_out`: sentences about
    what was not run. `apart`: sentences about records of other machines.
    """
    from harness.claims.load import load_claims
    from harness.report.report_data import ReportData
    from harness.report.results import with_changed_workloads
    from harness.report.spec import load_spec
    from harness.report.training import peaks

    names = sorted({record.environment for record in records if record.environment})
    files = {name: source / f"environment-{name}.json" for name in names}
    environment = {name: read_json(path) if path.exists() else "not kept" for name, path in files.items()}
    shipped = workloads_of(suite)
    fields = workload_fields(suite) if shipped else {}
    defaults = {name: one["default"] for name, one in fields.items() if "default" in one}
    spec = load_spec(suite, titles(suite) | dict(planned or {}), question=question_of(suite))
    return ReportData(
        suite,
        with_changed_workloads(spec, records, shipped, defaults),
        records,
        verdicts,
        environment,
        load_claims(suite),
        peaks(environment.values()),
        tuple(left_out),
        frozenset(shipped),
        tuple(apart),
    )


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; raises ConfigError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None


def write_report(folder: Path, data: ReportData) -> Path:
    """Write report.md, figures/, verdicts.json, report.html into `folder`; the page. Raises ConfigError."""
    from harness.report.write import write_suite

    with _errors_of(folder):
        return write_suite(folder, data)


def write_index(
    folder: Path, folders: Iterable[tuple[ReportData, str]], without_answers: bool = False
) -> Path:
    """Write the answers on the claims by these results into `folder`, with a list of the results; their page.

    `without_answers`: the list alone. Raises ConfigError, before anything is written, where results do not go
    together: two folders of one claim, two machines.
    """
    from harness.claims.answers import answer_claims
    from harness.claims.paper import load_answers
    from harness.report import write
    from harness.report.index.suite_index import findings, halves

    results, asked = list(folders), load_answers()
    rows = []
    if not without_answers:
        found = findings(results, asked.methods), halves(results, asked.methods)
        rows = answer_claims(asked.claims, *found)
    with _errors_of(folder):
        return write.write_index(folder, asked, rows, results)


@contextmanager
def _errors_of(folder: Path) -> Iterator[None]:
    """Turn a folder that cannot be written into an error that a person can act on."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write the report into {folder}: {error.strerror}; choose out=..."
        ) from None
