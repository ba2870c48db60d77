"""Architectures whose code reads values, which fake tensors lack: dry runs take the memory of real steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from suites.memory.live_bytes import measure_peak
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step
from suites.training.workload import Workload

HOST = Device("host", measured=True)

SHAPE = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings"),
)
"""Fields that the config's own sizes replace."""

T5_PART = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
BART_PARTS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
READ_VALUES: dict[str, dict[str, Any]] = {
    "fsmt": BART_PARTS | {"src_vocab_size": 96, "tgt_vocab_size": 96, "langs": ["en", "de"]},
    "led": BART_PARTS
    | {"attention_window": 8, "vocab_size": 96}
    | {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 96, "max_position_embeddings": 64},
    "t5gemma2": {"encoder": {"text_config": T5_PART}, "decoder": T5_PART},
    # every expert has every token, however the router decides
    "jetmoe": {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "kv_channels": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
    },
    "longcat_flash": {
        "vocab_size": 96,
        "hidden_size": 32,
        "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 32,
        "num_layers": 2,
        "num_attention_heads": 2,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "head_dim": 8,
        "n_routed_experts": 2,
        "zero_expert_num": 2,
        "moe_topk": 4,
    },
    "nllb-moe": BART_PARTS
    | {"vocab_size": 96, "num_experts": 6, "expert_capacity": 1000}
    | {
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "encoder_sparse_step": 1,
        "decoder_sparse_step": 1,
    },
    "switch_transformers": {
        "vocab_size": 96,
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 2,
        "num_experts": 1,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 2,
        "expert_capacity": 1000,
    },
}


@pytest.mark.parametrize("model_type", READ_VALUES)
def test_what_reads_values_takes_the_memory_that_it_takes(model_type: str) -> None:
    config = READ_VALUES[model_type] | {"model_type": model_type}
    fields: dict[str, Any] = {**dict.fromkeys(SHAPE, 1), "micro_batch_size": 3, "seq_len": 48}
    step = build_step(Workload(**fields, hf_config=config))
    measured = measure_peak(step, torch.device("cpu"), 1).peaks[0].live_B
    assert dry_run(step, HOST).peak_B == pytest.approx(measured, rel=5e-4)
