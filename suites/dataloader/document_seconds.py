"""What a document costs in seconds: linear n + quadratic n^2 for n tokens, fitted to timed training steps.

A step is the forward and backward pass of a small transformer on as many tokens, in rows of one document
each, so that its seconds per token are linear + quadratic n. `document_seconds.jsonl` has the steps of
cost=measured: the model, the host and the date, then a line per step. `python -m
suites.dataloader.document_seconds` prints it anew.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from harness.records import Unavailable, WrongResult
from suites.dataloader.workload import DataloaderBalanceWorkload
from suites.training.balance import DocumentCost

FILE = Path(__file__).parent / "document_seconds.jsonl"

MODEL: Mapping[str, int] = {
    "hidden_size": 512,
    "num_hidden_layers": 1,
    "intermediate_size": 1376,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 512,
}
"""The model of `document_seconds.jsonl`: one layer, whose MLP is as wide as Llama's in proportion."""

LONGEST, SHORTEST = 8192, 256
"""Tokens of the documents of `document_seconds.jsonl`; each length between them is twice the one before."""

TIMED_TOKENS, TIMED_LENGTHS = 4096, (256, 1024, 4096)
"""Tokens of a step, and lengths of its documents, of workloads with cost=timed."""

REPETITIONS = 3


class TimedStep(NamedTuple):
    """One step: the length of its documents, all its tokens, and its seconds."""

    document_tokens: int
    tokens: int
    seconds: float


def fitted(steps: Sequence[TimedStep]) -> DocumentCost:
    """Return the seconds of a document from the median step of each length, by relative least squares.

    Raises `WrongResult` where documents would cost less the longer they are: the host was busy.
    """
    lengths = sorted({one.document_tokens for one in steps})
    per_token = [
        median(one.seconds / one.tokens for one in steps if one.document_tokens == length)
        for length in lengths
    ]
    quadratic, linear = np.polyfit(lengths, per_token, 1, w=1 / np.array(per_token)).tolist()
    if linear <= 0 or quadratic < 0:
        raise WrongResult(f"seconds of a document: {linear:.3g} n {quadratic:+.3g} n^2; time the steps again")
    return DocumentCost(linear, quadratic)


@cache
def recorded() -> tuple[Mapping[str, Any], tuple[TimedStep, ...]]:
    """Return the first line of `document_seconds.jsonl`, and its steps."""
    first, *others = (json.loads(line) for line in FILE.read_text().splitlines())
    return first, tuple(TimedStep(**one) for one in others)


def cost_of(workload: DataloaderBalanceWorkload) -> DocumentCost:
    """Return what a document costs, in FLOP or seconds; raises `Unavailable` and `WrongResult`."""
    if workload.cost == "flop":
        return workload.flop
    plain = workload.mlp_matrices == 3 and workload.causal and workload.vocab_size > 1
    if not plain or workload.attention_only:
        raise Unavailable(f"cost={workload.cost}: expected a causal language model with a gated MLP")
    if workload.cost == "timed":
        return fitted(_timed_once(tuple((name, getattr(workload, name)) for name in MODEL)))
    first, steps = recorded()
    other = [f"{name}={size}" for name, size in first["model"].items() if getattr(workload, name) != size]
    if other:
        raise Unavailable(f"cost=measured: {FILE.name} has seconds of a model of {', '.join(other)} alone")
    return fitted(steps)


@lru_cache(maxsize=8)
def _timed_once(model: tuple[tuple[str, int], ...]) -> tuple[TimedStep, ...]:
    """Return timed steps of a model of these sizes, the same to all variants of a process."""
    return tuple(timed_steps(dict(model), TIMED_TOKENS, TIMED_LENGTHS, REPETITIONS))


def timed_steps(
    model: Mapping[str, int], tokens: int, lengths: Sequence[int], repetitions: int
) -> Iterator[TimedStep]:
    """Time steps in fp32 on the CPU, every length once per repetition, after a step that is not counted."""
    import torch  # slow to import, and only timed workloads need it

    from suites.training.models.model import Transformer
    from suites.training.workload import ModelShape

    shape = ModelShape(
        **model,
        norm="rms",
        mlp="swiglu",
        position="rotary",
        max_position_embeddings=tokens,
        tie_word_embeddings=False,
        bias=False,
    )
    torch.manual_seed(0)
    transformer = Transformer(shape, "sdpa")
    drawn = torch.randint(model["vocab_size"], (tokens + 1,))
    for repetition in range(repetitions + 1):
        for length in lengths[:1] if repetition == 0 else lengths:
            rows, targets = drawn[:-1].view(-1, length), drawn[1:].view(-1, length)
            begin_s = time.perf_counter()
            transformer(rows, targets).backward()
            seconds = time.perf_counter() - begin_s
            transformer.zero_grad(set_to_none=True)
            if repetition:
                yield TimedStep(length, tokens, seconds)


def main() -> None:
    """Time the steps of document_seconds.jsonl, on an idle host, and print them as its new content."""
    import torch

    host = {
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    lengths = [SHORTEST << power for power in range((LONGEST // SHORTEST).bit_length())]
    sys.stdout.write(json.dumps({"model": dict(MODEL), "host": host}) + "\n")
    for step in timed_steps(MODEL, LONGEST, lengths, REPETITIONS):
        sys.stdout.write(json.dumps(step._asdict() | {"seconds": round(step.seconds, 4)}) + "\n")


if __name__ == "__main__":
    main()
