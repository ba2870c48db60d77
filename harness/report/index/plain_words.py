"""Put what answers say of missing records into words: titles of reports, variants and metrics, not their ids.

Reasons are made where records are judged, which knows ids alone; the titles are those of conf/report and
conf/suite.
"""

from __future__ import annotations

import re
from functools import cache

from harness.claims.paper import PaperClaim
from harness.config.run import names
from harness.config.variants.optimizations import question_of, titles
from harness.report.language.spec import Spec, load_spec

_SUITE = re.compile(r"(?<!harness )\bsuite[= ](\w+)")
"""A suite in a sentence; one in a command that a reader is to type stays as it is."""

_TO_RUN = re.compile(r"\bsuite=(\w+)(?= on )")
_NO_RECORD = re.compile(r"no record of (\S+) on ([^\s,;]+)")
_NO_METRIC = re.compile(r"the cell has no (\w+) by ([^\s,;(]*)")
_ANOTHER_WORKLOAD = re.compile(r"\b(\w+)(?= was run with )")
_ID = re.compile(r"\b[a-z0-9]+(?:[_.][a-z0-9]+)+\b")


def suite_title(suite: str) -> str:
    """Return the title of a suite's report in quotation marks; its name where there is no such suite."""
    spec = _spec(suite)
    return f"“{spec.title}”" if spec else suite


def in_words(text: str, claim: PaperClaim) -> str:
    """Return `text` with the titles of suites, variants, workloads and metrics in place of their ids."""
    suites = dict.fromkeys(one.partition("/")[0] for one in (*claim.judged, *claim.related))
    specs = [spec for suite in suites if (spec := _spec(suite))]

    def named(identifier: str) -> str:
        title = _title(identifier, specs)
        return f"“{title}”" if title else identifier.replace("_", " ")

    def metric(match: re.Match[str]) -> str:
        method = f" by {named(match[2])}" if match[2] else ""
        return f"the run recorded no {named(match[1])}{method}"

    text = _NO_RECORD.sub(lambda match: f"{named(match[1])} was not run on {named(match[2])}", text)
    text = _NO_METRIC.sub(metric, text)
    text = _ANOTHER_WORKLOAD.sub(lambda match: named(match[1]), text)
    text = _ID.sub(lambda match: named(match[0]) if _title(match[0], specs) else match[0], text)
    text = text.replace("the cell ended as", "the run ended as").replace("the cell has", "the run has")
    text = _TO_RUN.sub(lambda match: f"a run of {suite_title(match[1])}", text)
    return _SUITE.sub(lambda match: suite_title(match[1]), text)


def _title(identifier: str, specs: list[Spec]) -> str:
    """Return what people call a variant, a workload, a metric or a method; "" where no report names it."""
    return next(
        (
            spec.names[key][identifier]
            for spec in specs
            for key in ("optimization", "workload", "metric", "method")
            if identifier in spec.names.get(key, {})
        ),
        "",
    )


@cache
def _spec(suite: str) -> Spec | None:
    """Return the report of a suite of conf/, None where there is no such suite."""
    if suite not in names("suite"):
        return None
    return load_spec(suite, titles(suite), question=question_of(suite))
