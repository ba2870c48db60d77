"""Seconds until `harness.fit` prints its verdict: a fresh process, an empty cache. Shown, never asserted.

`pytest tests/benchmarks/test_first_verdict.py --benchmark-only`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.config.code_fingerprint import ROOT

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5, "rope_theta": 5e5,
}  # fmt: skip
"""https://huggingface.co/meta-llama/Meta-Llama-3-8B and -70B, config.json, but for the sizes below."""

OF_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
OF_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}

QLORA = "techniques=[{lora:{rank:16,base:nf4}},attention,activation_checkpointing]"
COMPILED = "techniques=[{}mixed_precision,attention,{{compile:{{scope:{}}}}}]"

SET_UPS = {
    "8B, FSDP2 on 8": (OF_8B, ["devices=8"]),
    "70B, QLoRA": (OF_70B, [QLORA]),
    "8B, FSDP2 on 8, compiled blocks": (OF_8B, ["devices=8", COMPILED.format("fsdp2,", "blocks")]),
    "8B, one compiled graph": (OF_8B, [COMPILED.format("", "model")]),
}
"""Sizes of the model, and words of the command."""


def first_verdict(words: list[str], environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "harness.fit", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, text=True, **pipes) as process:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.strip()), "")
        process.terminate()
    assert "fit" in line


@pytest.mark.benchmark(group="first verdict")
@pytest.mark.parametrize("name", SET_UPS)
def test_first_verdict(benchmark, tmp_path: Path, name: str) -> None:
    sizes, words = SET_UPS[name]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA | sizes))
    numbers = count()

    def nothing_kept() -> tuple[Any, ...]:
        folder = tmp_path / str(next(numbers))
        out = f"out={folder / 'out'}"
        return ([f"model={config}", *words, out], {"HARNESS_TRACES": str(folder / "traces")}), {}

    benchmark.pedantic(first_verdict, setup=nothing_kept, rounds=5)
