"""Published config.json files through the memory suite: parameters as published, peaks as measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from real_configs import NAMES, cut, file_of, published, shrunken

pytest.importorskip("transformers", reason="the extra `hf` brings it")

import suites.memory.suite as memory
from harness.config.hf_config import workload_from_file
from harness.records import Reading
from suites.memory.subject import Subject
from suites.training.models.huggingface import build

PARAMETERS = {
    "bloom-560m": 559_214_592,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "falcon-7b": 6_921_720_704,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,  # of 4,300,079,472: the vision tower and the projection to text are left out
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-4-scout": 107_769_861_120,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "olmo-2-1b": 1_484_916_736,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "phi-2": 2_779_683_840,
    "phi-3-mini-4k": 3_821_079_552,
    "pythia-410m": 405_334_016,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "qwen3-30b-a3b": 30_532_122_624,
    "smollm3-3b": 3_075_098_624,
}
"""Parameters by the published weights, tied ones once."""

TIED = (
    *("bloom-560m", "falcon-7b", "gemma-2-2b", "gemma-3-1b", "gemma-3-4b", "gpt2", "llama-3.2-1b"),
    *("opt-125m", "opt-350m", "qwen2.5-0.5b", "qwen3-0.6b", "smollm3-3b"),
)
"""Models with one tensor for the embedding and the output layer."""

WITHOUT_SDPA = ("bloom-560m", "gemma-2-2b", "gpt-oss-20b")
"""Models for which transformers has no SDPA: ALiBi, softcapping, sinks."""

DEEPER = {"llama-4-scout": 4, "smollm3-3b": 4}
"""Layers that show each kind; 2 elsewhere."""

REAL_SIZES = ("deepseek-v3", "gemma-2-2b", "gemma-3-4b", "gpt2", "mixtral-8x7b", "qwen3-30b-a3b")
"""Models with a dry run at their published widths: one of each kind of layer."""


def a_subject(name: str, config: dict[str, Any], techniques: list[str], **changes: Any) -> Subject:
    """Return what the suite makes of a command with `suite.workload_from`, with these changes."""
    fields = workload_from_file(file_of(name))[1] | {"hf_config": config, "device_memory_B": 80e9} | changes
    subject = memory.build({"micro_batch_size": 2, "tie_word_embeddings": False, **fields}, seed=0)
    return memory.apply_techniques(subject, [(technique, {}) for technique in techniques])


def test_every_file_is_tested() -> None:
    assert PARAMETERS.keys() == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_published(name: str) -> None:
    with torch.device("meta"):
        model = build(published(name)).model
    assert sum(one.numel() for one in model.parameters()) == PARAMETERS[name]
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight  # type: ignore[operator,union-attr]
    assert tied == (name in TIED)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_one_takes_what_is_predicted(name: str) -> None:
    """Build, check and sample, with a real step; without SDPA its activations are recomputed instead."""
    instead = "activation_checkpointing" if name in WITHOUT_SDPA else "attention"
    config = shrunken(name, DEEPER.get(name, 2))
    subject = a_subject(name, config, ["mixed_precision", instead], measurable=True, seq_len=24)
    memory.check(subject)
    values = {
        (one.metric, one.method): one.value for one in memory.sample(subject) if isinstance(one, Reading)
    }
    assert values["peak_memory", "measured"] > 0
    assert abs(values["relative_error", "fake_step"]) < 5e-5


@pytest.mark.parametrize("name", REAL_SIZES)
def test_at_real_sizes_a_common_set_up_takes_less(name: str) -> None:
    """FSDP2 with mixed precision and checkpointing, on CUDA; sharded states are an eighth, all 16 B/param."""
    config = cut(published(name), 2)
    with torch.device("meta"):
        parameters = sum(one.numel() for one in build(config).parameters())
    peaks = []
    for techniques in ([], ["fsdp2", "mixed_precision", "activation_checkpointing"]):
        subject = a_subject(name, config, techniques, simulated_device="cuda", optimizer_impl="fused")
        memory.check(subject)
        peaks.append(memory.peak_of_rank(subject, reserved=False).peak_B)
    assert peaks[0] > 16 * parameters
    assert 2 * parameters < peaks[1] < 0.6 * peaks[0]
