"""Rewrites the records of an earlier schema version: `python -m harness.migrate FOLDER [FOLDER ...]`.

Only names change, never a measured value: each version lists what it renamed. The records file is replaced in
one step, so that an interrupted run leaves either the old file or the new one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.records import SCHEMA
from harness.store import RECORDS, StoreError, replace_file

MODEL_FIELDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "batch": "micro_batch_size",
    "micro_batches": "gradient_accumulation_steps",
    "clip_norm": "max_grad_norm",
    "tensor_ranks": "tp_size",
    "optimizer_loop": "optimizer_impl",
}
"""Fields of a workload that took Hugging Face's names in version 2."""

SUITE_FIELDS: Mapping[str, Mapping[str, str]] = {}
"""Further fields of one suite's workloads."""

SETTINGS = {"plain_steps": "warmup_steps"}
"""Settings of optimizations."""

CONDITIONS = {"kernels": {"batch": "micro_batch_size"}}
"""Conditions of one suite's records."""

Data = dict[str, Any]


def from_1_to_2(data: Data) -> Data:
    """Give a record of version 1 the names of version 2."""
    cell = data["cell"]
    suite, config = cell["suite"], cell["config"]
    config["workload"] = rename(config["workload"], {**MODEL_FIELDS, **SUITE_FIELDS.get(suite, {})})
    config["settings"] = rename(config["settings"], SETTINGS)
    data["conditions"] = rename(data["conditions"], CONDITIONS.get(suite, {}))
    data["notes"] = data.pop("remarks")
    return data


STEPS: Mapping[int, Callable[[Data], Data]] = {1: from_1_to_2}
"""Version -> what turns its records into those of the next."""


def rename(data: Mapping[str, Any], names: Mapping[str, str]) -> Data:
    """Return `data` with its keys renamed by `names`, in the same order."""
    return {names.get(key, key): value for key, value in data.items()}


def migrate_line(line: str) -> str:
    """Return a record's line in the present version; a line of the present version is returned as it is.

    Raises ValueError where the line is no record, or of a version that is not known.
    """
    data = json.loads(line)
    version: Any = data.get("schema") if isinstance(data, dict) else None
    if version == SCHEMA:
        return line
    while version != SCHEMA:
        if version not in STEPS:
            raise ValueError(f"schema version {version!r} is unknown; known: {', '.join(map(str, STEPS))}")
        data = STEPS[version](data)
        version += 1
        data["schema"] = version
    return json.dumps(data, separators=(",", ":"))


def migrate(folder: Path) -> int:
    """Rewrite the records of `folder`; return how many changed. Raises `StoreError`."""
    path = folder / RECORDS
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    migrated = []
    for number, line in enumerate(lines, 1):
        try:
            migrated.append(migrate_line(line))
        except (LookupError, TypeError, ValueError) as error:
            raise StoreError(f"{path}, line {number}: {error}") from error
    changed = sum(old != new for old, new in zip(lines, migrated, strict=True))
    if changed:
        replace_file(path, "".join(f"{line}\n" for line in migrated).encode())
    return changed


def main(folders: Sequence[str]) -> int:
    """Migrate each folder; exit status 1 where one could not be read, 2 where none was named."""
    if not folders:
        print("usage: python -m harness.migrate FOLDER [FOLDER ...]", file=sys.stderr)
        return 2
    for folder in folders:
        try:
            print(f"{folder}: {migrate(Path(folder))} records rewritten to schema version {SCHEMA}")
        except StoreError as error:
            print(f"harness: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
