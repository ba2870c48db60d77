"""`python -m harness.fit layout=...`: does a layout of parallelism fit, or which layouts do?

A cell of suite layouts answers, from a closed account of the training program's tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.commands.fit.question import (
    DEFAULT_DEVICE,
    hardware_words,
    loaded,
    model_name,
    question_id,
    quoted,
)
from harness.commands.grammar import CommandWords, RequestedDevice, device_of, read
from harness.config.validation import ConfigError, unknown

if TYPE_CHECKING:
    from harness.config.run import Run

SEARCH = "search"

PASSED_ON = (
    "seq_len",
    "micro_batch_size",
    "optimizer",
    "recompute",
    "recompute_modules",
    "dispatcher",
    "program",
    "precision",
    "offload",
    "global_batch_size",
    "gpus_per_node",
    "fused_loss",
    "compiled",
)
"""Keys that are fields of a workload of suite layouts."""

KEYS = ("model", "device", "devices", "layout", *PASSED_ON, "out")

PARTS = ("dp", "tp", "pp", "cp", "ep", "etp", "virtual_stages", "zero", "shard_size", "sequence_parallel")
"""Parts of a layout."""

PART = re.compile(r"([a-z_]+)[:=]?(\d+)")


class LayoutQuestion(NamedTuple):
    """What is asked, checked; `run` has one cell."""

    run: Run
    model: str  # the file, without its folder
    device: RequestedDevice
    devices: int
    search: bool

    @property
    def workload(self) -> Mapping[str, object]:
        """Return the fields of the cell's workload."""
        (fields,) = self.run.workloads.values()
        return fields


def question_of(argv: Sequence[str]) -> LayoutQuestion:
    """Return what the words ask; raises ConfigError."""
    words = read(argv, KEYS)
    if words.paths:
        raise ConfigError(f"{words.paths[0]}: expected KEY=VALUE; keys with layout=: {', '.join(KEYS)}")
    given = words.values
    if "model" not in given:
        raise ConfigError("model: missing; give model=PATH, a Hugging Face config.json or its folder")
    devices = words.whole("devices", 1)
    parts = parts_of(words, devices)
    device = device_of(words.text("device", DEFAULT_DEVICE))
    fields: dict[str, object] = {"gpus": devices, "search": parts is None, **(parts or {})}
    fields |= {key: given[key] for key in PASSED_ON if key in given}
    if fields.get("program", "megatron") == "torchtitan":
        fields.setdefault("zero", 3)
    if "recompute_modules" in fields:
        fields.setdefault("recompute", "selective")
    run = loaded(
        [
            "suite=layouts",
            *hardware_words(device),
            f"suite.workload_from={quoted(given['model'])}",
            *(f"suite.hf_defaults.{key}={shown(value)}" for key, value in fields.items()),
        ]
    )
    out = Path(given.get("out", "results/fit"))
    run = replace(run, out=out / question_id(run, ()))
    return LayoutQuestion(run, model_name(given["model"]), device, devices, parts is None)


def shown(value: object) -> str:
    """Return a value in Hydra's grammar."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parts_of(words: CommandWords, devices: int) -> Mapping[str, int] | None:
    """Return the parts of a layout as they were typed, None for a search; raises ConfigError.

    `tp:8,pp:4` and `tp8,pp4` are the same. A `dp` must be what the others leave of the devices.
    """
    text = words.values["layout"]
    if text == SEARCH:
        return None
    parts: dict[str, int] = {}
    for one in text.strip("{}").split(","):
        match = PART.fullmatch(one.replace(" ", ""))
        if match is None:
            raise ConfigError(
                f"{words.typed['layout']}: expected search, or parts such as tp:8,pp:4,zero:1; parts: "
                f"{', '.join(PARTS)}"
            )
        name, size = match[1], int(match[2])
        if name not in PARTS:
            raise unknown(f"layout={one}", name, PARTS)
        if name in parts:
            raise ConfigError(f"layout={one}: {name} is given twice")
        if name == "sequence_parallel" and size > 1:
            raise ConfigError(f"layout={one}: expected sequence_parallel:0 or sequence_parallel:1")
        parts[name] = bool(size) if name == "sequence_parallel" else size
    dp = parts.pop("dp", None)
    if dp is not None:
        ranks = parts.get("tp", 1) * parts.get("pp", 1) * parts.get("cp", 1)
        if dp * ranks != devices:
            left = f"devices={dp * ranks}" if dp * ranks else "dp of at least 1"
            raise ConfigError(
                f"layout=dp:{dp}: dp × tp × pp × cp = {dp * ranks}, and devices={devices}; give {left}, or "
                "no dp"
            )
    return parts
