"""Models of an encoder and a decoder, of several widths, and of a section for text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.models.huggingface import build
from suites.training.techniques import build_step
from suites.training.workload import Workload

T5: dict[str, Any] = {
    "model_type": "t5",
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "vocab_size": 64,
    "dropout_rate": 0.0,
}
BART: dict[str, Any] = {
    "model_type": "bart",
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "dropout": 0.0,
}
WHISPER = {**BART, "model_type": "whisper", "max_target_positions": 64, "pad_token_id": 0}
GEMMA3N: dict[str, Any] = {
    "model_type": "gemma3n_text",
    "hidden_size": 64,
    "intermediate_size": [96, 128],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "layer_types": ["sliding_attention", "full_attention"],
    "activation_sparsity_pattern": [0.0, 0.0],
    "laurel_rank": 8,
    "max_position_embeddings": 64,
}


def a_workload(config: dict[str, Any]) -> Workload:
    shape = (
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size"),
    )
    fields: dict[str, Any] = dict.fromkeys(shape, 1) | {"max_position_embeddings": 64, "seq_len": 16}
    return Workload(**fields, hf_config=config, micro_batch_size=2)


@pytest.mark.parametrize("config", [T5, BART], ids=["t5", "bart"])
def test_encoder_and_decoder_read_the_same_tokens(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = build(config).eval()
    tokens, targets = torch.randint(3, 60, (2, 2, 16))
    logits = model.model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits
    assert model(tokens, targets) == F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_the_layers_are_those_of_both() -> None:
    layers = build(T5).blocks
    assert len(layers) == 5
    assert [layer.is_decoder for layer in layers] == [False, False, True, True, True]  # type: ignore[union-attr]


@pytest.mark.parametrize("config", [T5, BART, WHISPER, GEMMA3N], ids=lambda config: str(config["model_type"]))
@pytest.mark.parametrize("technique", ["mixed_precision", "activation_checkpointing", "fsdp2"])
def test_a_step_is_answered(config: dict[str, Any], technique: str) -> None:
    step = build_step(a_workload(config), [technique])
    parameters = sum(one.numel() for one in build(config).parameters())
    assert dry_run(step, Device("cuda"), reserved=False).peak_B > 4 * parameters


def test_of_several_widths_the_largest_is_the_workloads() -> None:
    assert build_step(a_workload(GEMMA3N)).workload.intermediate_size == 128


def test_checkpointing_takes_less_than_none() -> None:
    peaks = []
    for techniques in ([], ["activation_checkpointing"]):
        workload = replace(a_workload(T5), micro_batch_size=64)
        step = build_step(workload, techniques)
        peaks.append(dry_run(step, Device("cuda"), reserved=False).peak_B)
    assert peaks[1] < peaks[0]
