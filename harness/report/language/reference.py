"""Write the reference of conf/report/'s language, docs/report-language.md, from its schema."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from harness.report.language import schema

HEAD = """# The language of conf/report/

`conf/report/<suite>.yaml` defines the tables and figures of a suite's report. The report is generated from
records alone, so this file names metrics, methods and workloads and contains no code. A suite without such a
file shows every metric by workload and variant, with the change against the baseline and a figure each.

This page is generated from the schema by `python -m harness.report.language.reference`; a test compares the
two. Fields without a default are required. A mistake is refused with the name of the file, the block and the field.

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
    "PICKED": schema.PICKED,
    "ASSUMED": schema.ASSUMED,
    "COLUMN": schema.COLUMN,
    "AXIS": schema.AXIS,
    "MARK": schema.MARK,
    "BAND": schema.BAND,
    "DOTS": schema.DOTS,
    "CONTROL": schema.CONTROL,
}


def reference() -> str:
    """Return the page."""
    parts = [HEAD, "## The file", _table(schema.FILE), "## A BLOCK", _table(schema.BLOCK)]
    common = _common_fields()
    parts += ["## Fields of many kinds of blocks", _table(common), "## Kinds of blocks"]
    for kind, fields in schema.KINDS.items():
        parts += [f"### {kind}", schema.KIND_DOCS[kind]]
        own = {name: field for name, field in fields.items() if common.get(name) != field}
        parts += [_table(own)] if own else []
        if listed := [f"`{name}`" for name in fields if name not in own]:
            parts += [f"{'Also' if own else 'It has'} {', '.join(listed)}, see above."]
    for name, fields in TERMS.items():
        parts += [f"## {name}", _table(fields)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _common_fields() -> dict[str, Mapping[str, Any]]:
    """Return the fields that at least three kinds of blocks have alike, in the schema's order."""
    every = [(name, field) for fields in schema.KINDS.values() for name, field in fields.items()]
    return {name: field for name, field in every if every.count((name, field)) > 2}


def _table(fields: Mapping[str, Mapping[str, Any]]) -> str:
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        kind = ", ".join(f"`{one}`" for one in field["one_of"] if one) if "one_of" in field else field["type"]
        default = f"`{_yaml(field['default'])}`" if "default" in field else ""
        rows.append(f"| `{name}` | {kind} | {default} | {field['doc']} |")
    return "\n".join(rows)


def _yaml(value: Any) -> str:
    return {"": '""', "False": "false", "True": "true"}.get(str(value), str(value))


if __name__ == "__main__":
    sys.stdout.write(reference())
