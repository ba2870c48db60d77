"""Published training steps, of the files of this folder: a question each, with the published answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

FILES = ("published_steps.jsonl", "dgxc_steps.jsonl")
"""Steps that constants of the model were fitted to, and steps that none was fitted to: the tables of
NVIDIA/dgxc-benchmarking, whose READMEs state sizes and layouts. Llama's sizes are those of its config.json;
Nemotron's MLP is not gated (NVIDIA/NeMo, nemo/collections/llm/gpt/model/nemotron.py)."""

ATTENTION_FILE = "attention_steps.jsonl"
"""Steps with and without FlashAttention: 1.3 B and 2.7 B on 8 A100, arXiv 2307.08691, table 1. Seconds follow
from its TFLOP/s by its formula, 6 per parameter and token and 12 × layers × hidden size × tokens; sizes,
batches and ZeRO-1 are those of Dao-AILab/flash-attention, commit 0251105a, training/configs/experiment/pile.
Micro-batches are not published; one sequence is taken. No constant was fitted to these
steps, and `published` leaves them out."""

PublishedStep = Mapping[str, Any]
"""A published step (`kind` step), or layouts to choose from (`choose`); `published` is its answer."""


@cache
def published() -> tuple[PublishedStep, ...]:
    """Return every published step."""
    lines = [line for name in FILES for line in (FOLDER / name).read_text().splitlines()]
    return tuple(json.loads(line) for line in lines)


@cache
def with_and_without_attention() -> tuple[PublishedStep, ...]:
    """Return the steps of `ATTENTION_FILE`."""
    return tuple(json.loads(line) for line in (FOLDER / ATTENTION_FILE).read_text().splitlines())


def ran(step: PublishedStep) -> bool:
    """Return whether seconds were published of a step."""
    return step["kind"] == "step" and bool(step["published"].get("step_s"))
