"""Configs and models that are refused: what cannot be built or traced, in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `hf` brings it")
from test_huggingface import DATA, HOST, a_workload

from harness.records import Unavailable
from suites.memory.live_bytes import measure_peak
from suites.training.dry_run.dry_run import dry_run
from suites.training.models import huggingface_config
from suites.training.models.huggingface import build
from suites.training.techniques import build_step

LLAMA = json.loads((DATA / "llama.json").read_text())


@pytest.mark.parametrize(
    ("config", "refusal", "said"),
    [
        ({"model_type": "no_such_model"}, Unavailable, "no_such_model"),
        ({"model_type": "vit"}, Unavailable, "no causal or masked language model"),
        (LLAMA | {"hidden_size": 65}, Unavailable, "multiple"),
        (LLAMA | {"hidden_size": "64"}, Unavailable, "hidden_size"),
        (LLAMA | {"num_attention_heads": 0}, Unavailable, "num_attention_heads is 0"),
        (LLAMA | {"hidden_act": "no_such_function"}, Unavailable, "no_such_function"),
        (LLAMA | {"rope_scaling": {"rope_type": "no_such_rope"}}, Unavailable, "no_such_rope"),
        (LLAMA | {"intermediate_size": -5}, Unavailable, "intermediate_size is -5"),
        (LLAMA | {"pad_token_id": 10**6}, Unavailable, "pad_token_id is 1000000"),
    ],
    ids=str,
)
def test_refusals_in_one_line(config: dict[str, Any], refusal: type[Exception], said: str) -> None:
    with pytest.raises(refusal) as caught:
        build_step(a_workload(config))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_code_of_others_is_not_run() -> None:
    strange = LLAMA | {"auto_map": {"AutoModelForCausalLM": "somewhere/else--modeling.Theirs"}}
    assert type(build(strange).model).__name__ == "LlamaForCausalLM"


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    """On fake tensors an embedding would take any position."""
    model = build(LLAMA)
    tokens = torch.zeros(1, 129, dtype=torch.long)
    with pytest.raises(ValueError, match="129 tokens"):
        model(tokens, tokens)


def test_dynamic_rotary_embeddings_cannot_be_traced() -> None:
    config = LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    step = build_step(a_workload(config))
    with pytest.raises(Unavailable, match="dynamic"):
        dry_run(step, HOST)
    assert measure_peak(step, torch.device("cpu"), 1).peaks


def test_a_model_that_reads_values_cannot_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    forward = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda mlp, x: forward(mlp, x) * x.sum().item())
    with pytest.raises(Unavailable, match="values"):
        dry_run(build_step(a_workload(LLAMA)), HOST)


def test_a_backward_pass_that_reads_values_cannot_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    def forward(mlp: Any, x: torch.Tensor) -> torch.Tensor:
        y = forward_of(mlp, x)
        y[x[..., 0] > 0] = mlp.gate_proj.weight[0, :1]  # the gradient of the value is read from there
        return y

    forward_of = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", forward)
    with pytest.raises(Unavailable, match="values"):
        dry_run(build_step(a_workload(LLAMA)), HOST)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_config, "find_spec", lambda name: None)
    assert "`hf`" in str(huggingface_config.unavailable())
    with pytest.raises(Unavailable, match="`hf`"):
        build(LLAMA)
