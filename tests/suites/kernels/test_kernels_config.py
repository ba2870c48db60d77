"""A user's config.json in suite kernels: its own model, by each technique, and what is counted of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import variants
from small_kernels import ARMS, checked
from torch.utils.flop_counter import FlopCounterMode

from harness.config.run import load
from harness.records import Unavailable
from suites.kernels import correctness, training_step
from suites.kernels import suite as kernels
from suites.kernels.subject import Subject
from suites.kernels.training_step import FixedBatchTrainer

pytest.importorskip("transformers")

DATA = Path(__file__).parents[2] / "data" / "small_configs"
TOKENS = 24

CONFIGS = ["bert", "bloom", "deepseek_v3", "gemma", "gemma2", "gpt2", "gpt_neox", "llama", "mistral"]
CONFIGS += ["mixtral", "opt", "phi", "qwen2", "qwen3"]
NO_SDPA = ("bloom", "gemma2")
"""Of these transformers has no SDPA attention."""


def workload_of(name: str, *words: str) -> dict[str, Any]:
    file = f"suite.workload_from={DATA / name}.json"
    (run,) = load(["suite=kernels", file, f"suite.hf_defaults.seq_len={TOKENS}", *words])
    return dict(run.workloads[name])


def subject_of(name: str, *words: str) -> Subject:
    return kernels.build(workload_of(name, *words), seed=3)


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    yield
    correctness.baseline_steps.cache_clear()
    correctness.shared_states.cache_clear()


@pytest.mark.parametrize("name", CONFIGS)
def test_each_technique_that_applies_trains_the_configs_own_model(name: str) -> None:
    subject = subject_of(name)
    session = checked(subject)
    made = type(session.trainer.model.model).__name__
    assert kernels.conditions(session)["model_code"].endswith(made)
    for variant in ("fused_optimizer", "autocast_bf16", "sdpa"):
        lacking = variant == "sdpa" and name in NO_SDPA
        with pytest.raises(Unavailable, match="no SDPA attention") if lacking else nullcontext():
            other = checked(variants.applied("kernels", ARMS[variant], subject))
            assert other.max_error < (0.1 if variant == "autocast_bf16" else 1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_the_flops_are_those_that_torch_counts(name: str) -> None:
    subject = subject_of(name)
    workload = subject.workload
    trainer = FixedBatchTrainer(subject)
    with FlopCounterMode(display=False) as counter:
        trainer.loss_and_gradients()
    heads = workload.num_attention_heads * kernels.head_size(workload)
    explicit = 12.0 * workload.num_hidden_layers * heads * TOKENS**2  # all scores; the suite counts half
    causal = 6.0 * workload.num_hidden_layers * workload.hidden_size * TOKENS**2
    counted = counter.get_total_flops() - explicit
    assert training_step.flops(workload) - causal == pytest.approx(counted, rel=0.01)
    assert training_step.parameters(workload) == sum(one.numel() for one in trainer.model.parameters())


def test_of_experts_those_that_a_token_reaches_are_counted() -> None:
    config = json.loads((DATA / "mixtral.json").read_text())
    counts = training_step.counts(subject_of("mixtral").workload)
    layers, width = config["num_hidden_layers"], config["hidden_size"]
    unreached = layers * (config["num_local_experts"] - config["num_experts_per_tok"])
    table, norms = config["vocab_size"] * width, (2 * layers + 1) * width
    left_out = unreached * 3 * width * config["intermediate_size"] + table + norms
    assert counts.multiplied == counts.parameters - left_out


def test_dropout_is_left_out_of_the_config_and_of_its_classs_defaults() -> None:
    workload = workload_of("gpt2")
    del workload["hf_config"]["attn_pdrop"]
    trainers = [FixedBatchTrainer(kernels.build(workload, seed=3)) for _ in range(2)]
    assert trainers[0].loss_and_gradients() == trainers[1].loss_and_gradients()


def test_a_model_too_large_for_this_machine_ends_with_the_layers_that_fit(monkeypatch) -> None:
    free_B = [30e6]
    for module in ("harness.instruments.memory.allocator", "suites.kernels.suite"):
        monkeypatch.setattr(f"{module}.free_bytes", lambda device: free_B[0])
    config = {**json.loads((DATA / "llama.json").read_text()), "num_hidden_layers": 64}

    def prepare(count: int) -> None:
        shorter = {**config, "num_hidden_layers": count}
        workload = {**workload_of("llama"), "hf_config": shorter, "num_hidden_layers": count}
        kernels.prepare(kernels.build(workload, seed=3))

    with pytest.raises(MemoryError, match=r"24 tokens takes about .* would fit") as found:
        prepare(64)
    fit = int(str(found.value).partition("num_hidden_layers=")[2].split()[0])
    assert 1 < fit < 64
    prepare(fit)
    with pytest.raises(MemoryError):
        prepare(fit + 1)
    free_B[0] = 1e5
    with pytest.raises(MemoryError, match="does not fit either"):
        prepare(2)
