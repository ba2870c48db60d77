"""Write the reference of conf/report/'s language, docs/extend/report-language.md, from its schema."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from harness.report.language import kinds, schema

HEAD = """# The language of conf/report/

`conf/report/<suite>.yaml` defines the tables and figures of a suite's report. The report is generated from
records alone, so this file names metrics, methods and workloads and contains no code. A suite without such a
file shows every metric by workload and variant, with the change against the baseline and a figure each.

`python -m harness.report.language.reference` writes this page from the schema; a test compares them.
Fields without a default are required. A mistake is refused with the name of the file, block and field.

```yaml
suite: memory
title: How much device memory does a training step take?
question: What was compared with what, in a paragraph.
blocks:
  - kind: effects
    id: pays
    title: "What each optimization does to {workload}"
    workload: llama_7b
    metric: peak_memory
    method: fake_step
    unit: auto
    baseline: baseline
    equal_within: 0.005
```
"""

TERMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "NAMES": schema.NAMES,
    "ANSWER": schema.ANSWER,
    "ALSO": schema.ALSO,
    "STATED": schema.STATED,
    "CLAUSE": schema.CLAUSE,
    "PICKED": schema.PICKED,
    "ASSUMED": schema.ASSUMED,
    "COLUMN": schema.COLUMN,
    "AXIS": schema.AXIS,
    "MARK": schema.MARK,
    "BAND": schema.BAND,
    "DOTS": schema.DOTS,
    "SERIES": schema.ONE_LINE,
    "CONTROL": schema.CONTROL,
}


def reference() -> str:
    """Return the page."""
    parts = [HEAD, "## The file", _table(schema.FILE), "## A BLOCK", _table(schema.BLOCK)]
    common = _common_fields()
    parts += ["## Fields of many kinds of blocks", _table(common)]
    rows = ["| kind | what it shows | fields of its own | others |", "|---|---|---|---|"]
    for kind, fields in kinds.KINDS.items():
        own = {name: field for name, field in fields.items() if common.get(name) != field}
        others = ", ".join(f"`{name}`" for name in fields if name not in own)
        rows.append(f"| `{kind}` | {kinds.KIND_DOCS[kind]} | {_listed(own)} | {others} |")
    parts += ["## Kinds of blocks", "\n".join(rows), "## What fields consist of"]
    terms = [f"| {name} | {_listed(fields)} |" for name, fields in TERMS.items()]
    parts.append("\n".join(["| name | fields |", "|---|---|", *terms]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _common_fields() -> dict[str, Mapping[str, Any]]:
    """Return the fields that at least three kinds of blocks have alike, in the schema's order."""
    every = [(name, field) for fields in kinds.KINDS.values() for name, field in fields.items()]
    return {name: field for name, field in every if every.count((name, field)) > 2}


def _table(fields: Mapping[str, Mapping[str, Any]]) -> str:
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        rows.append(f"| `{name}` | {_type(field)} | {_default(field)} | {field['doc']} |")
    return "\n".join(rows)


def _listed(fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the fields as lines of one cell: name, type, default, meaning."""
    lines = []
    for name, field in fields.items():
        default = f" = {found}" if (found := _default(field)) else ""
        lines.append(f"`{name}` ({_type(field)}{default}): {field['doc']}")
    return "<br>".join(lines)


def _type(field: Mapping[str, Any]) -> str:
    return ", ".join(f"`{one}`" for one in field["one_of"] if one) if "one_of" in field else field["type"]


def _default(field: Mapping[str, Any]) -> str:
    return f"`{_yaml(field['default'])}`" if "default" in field else ""


def _yaml(value: Any) -> str:
    return {"": '""', "False": "false", "True": "true"}.get(str(value), str(value))


if __name__ == "__main__":
    sys.stdout.write(reference())
