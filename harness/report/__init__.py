"""(records, verdicts) -> Markdown, figures and one self-contained page.

The functions here read and write files; the rest is pure. jinja2 and rich are imported only when a report
is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.claim_model import Verdict
from harness.optimizations import titles
from harness.records import Record
from harness.validation import ConfigError

if TYPE_CHECKING:
    from harness.report.findings import Findings


def gather(
    suite: str,
    records: Sequence[Record],
    verdicts: Sequence[Verdict],
    source: Path,
    planned: Mapping[str, str] | None = None,
) -> Findings:
    """The run whose records lie in `source`, its claims and its report's spec; raises ConfigError.

    `planned` has the titles of its variants; those that it lacks come from conf/.
    """
    from harness.claims import load_claims
    from harness.report.findings import Findings
    from harness.report.spec import load_spec

    shown = titles(suite) | dict(planned or {})
    environment = {}
    for name in sorted({record.environment for record in records if record.environment}):
        path = source / f"environment-{name}.json"
        environment[name] = _read_json(path) if path.exists() else "not kept"
    return Findings(suite, load_spec(suite, titles=shown), records, verdicts, environment, load_claims(suite))


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None


def write_report(folder: Path, found: Findings) -> Path:
    """Write report.md, figures/, verdicts.json, report.html into `folder`; the page. Raises ConfigError."""
    from harness.report.write import write_suite

    with _told(folder):
        return write_suite(folder, found)


def write_all(folder: Path, suites: Iterable[tuple[Findings, Path]]) -> Path:
    """Write the page of all suites' verdicts into `folder`; its path. Each suite comes with its own page."""
    from harness.report.write import write_every

    with _told(folder):
        return write_every(folder, list(suites))


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """A folder that cannot be written is a mistake that a person can mend."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write the report into {folder}: {error.strerror}; choose out=..."
        ) from None
