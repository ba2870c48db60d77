"""A config.json with a wrong value anywhere: one line with the key and its value, or an answer."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.config.hf_config import workload_from_file
from harness.records import Unavailable
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step
from suites.training.workload import Workload

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {
    **{key: LLAMA[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")},
    "model_type": "qwen3_moe",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 32,
    "max_position_embeddings": 128,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
}
NESTED: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        **{
            key: LLAMA[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
        },
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
    },
}
GOOD = {"llama": LLAMA, "experts": EXPERTS, "nested": NESTED}

BF16 = ["mixed_precision"]


def answer(text: str, techniques: list[Any] = BF16) -> str:
    """Return why a config.json has no dry run of a small step; "" where it has one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(text)
        try:
            fields = workload_from_file(file).fields
            fields["seq_len"] = min(16, fields["seq_len"])
            step = build_step(Workload.of({**fields, "optimizer_impl": "fused"}), techniques)
            peak_B = dry_run(step, Device("cuda"), reserved=False).peak_B
        except (ValueError, Unavailable) as error:
            return str(error).replace(str(file), "config.json")
    assert peak_B > 0
    return ""


def is_one_line(said: str) -> bool:
    """Return whether an answer is there, or its reason is short."""
    return "\n" not in said and len(said) <= 300


@pytest.mark.parametrize("name", GOOD)
def test_the_configs_that_are_made_wrong_have_an_answer(name: str) -> None:
    assert answer(json.dumps(GOOD[name])) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": 3}, "hidden_act is 3; it must be text"),
        (
            {"hidden_act": "nope"},
            'hidden_act is "nope"; it must be an activation of transformers, such as gelu',
        ),
        ({"quantization_config": "gptq"}, 'quantization_config is "gptq"; it must be an object'),
        ({"rope_scaling": 5}, "rope_scaling is 5; it must be an object"),
        ({"rope_parameters": "x"}, 'rope_parameters is "x"; it must be an object'),
        (
            {"rope_scaling": {"rope_type": "nope"}},
            'rope_scaling.rope_type is "nope"; it must be one of',
        ),
        ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, 'rope_scaling.factor is "x"'),
        ({"text_config": "x"}, 'text_config is "x"; it must be an object'),
        ({"text_config": {"hidden_size": 64}}, "text_config.model_type is missing"),
        ({"layer_types": 3}, "layer_types is 3; it must be a list"),
        ({"attention_dropout": "0.1"}, 'attention_dropout is "0.1"; it must be'),
        ({"attention_dropout": -1.0}, "attention_dropout is -1.0"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5; it must be a number from 0 to 1"),
        (
            {"rope_scaling": {"partial_rotary_factor": 3}},
            "rope_scaling.partial_rotary_factor is 3; it must be",
        ),
        ({"rms_norm_eps": 1}, "rms_norm_eps is 1; it must be a number with a decimal point"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps is NaN; it must be a finite number"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000000000000000000000000000; it must be at most"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000; it must be at most 1,024"),
        ({"intermediate_size": -5}, "intermediate_size is -5; it must be a number of at least 0"),
        (
            {"num_attention_heads": 5, "num_key_value_heads": 5},
            "is not a multiple of the number",
        ),
        ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes"; it must be true or false'),
        ({"model_type": 7}, "model_type is 7; it must be text"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"torch_dtype": 16}, "torch_dtype is 16; it must be text"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_key_its_value_and_what_is_allowed(change: dict[str, Any], said: str) -> None:
    found = answer(json.dumps(LLAMA | change))
    assert said in found
    assert is_one_line(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"num_experts": -1}, "num_experts is -1; it must be a number of at least 0"),
        ({"num_experts": 10**9}, "num_experts is 1000000000; it must be at most 16,384"),
        ({"mlp_only_layers": ["a"]}, 'mlp_only_layers is ["a"]; it must be a list'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_of_experts(change: dict[str, Any], said: str) -> None:
    assert said in answer(json.dumps(EXPERTS | change))


def test_a_section_of_a_multimodal_model_has_its_path() -> None:
    wrong = copy.deepcopy(NESTED)
    wrong["text_config"]["hidden_activation"] = 4
    assert "text_config.hidden_activation is 4; it must be text" in answer(json.dumps(wrong))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "llama", "model_type": "gpt2"}', "model_type is given twice"),
        ('{"model_type": "llama", "a": {"b": 1, "b": 2}}', "b is given twice"),
        ('{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}", "4300 digits"),
        ("{}", "model_type is missing"),
    ],
    ids=["twice", "twice below", "digits", "empty"],
)
def test_what_is_no_config(text: str, said: str) -> None:
    assert said in answer(text)


def test_a_device_or_a_pipe_is_not_read() -> None:
    with pytest.raises(ValueError, match="is not a file"):
        workload_from_file(Path("/dev/zero"))


NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.mark.parametrize(
    ("section", "techniques", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, BF16, 'quant_method is "gptq"; it must be bitsandbytes'),
        ({"quant_method": "fp8"}, [{"lora": {"base": "nf4"}}], 'quant_method is "fp8"'),
        ({}, BF16, "quantization_config.quant_method is null"),
        (NF4, BF16, "techniques=[{lora: {base: nf4}}]"),
        (NF4, [{"lora": {"base": "int8"}}], "techniques=[{lora: {base: nf4}}]"),
        (NF4, [{"lora": {"base": "nf4"}}], "double_quantization: false"),
        (NF4, [{"lora": {"base": "nf4", "double_quantization": False}}], ""),
        (NF4 | {"bnb_4bit_use_double_quant": True}, [{"lora": {"base": "nf4"}}], ""),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, [{"lora": {"base": "int8"}}], ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_quantized_weights_are_honoured_or_refused(
    section: dict[str, Any], techniques: list[Any], said: str
) -> None:
    found = answer(json.dumps(LLAMA | {"quantization_config": section}), techniques)
    assert found == said if said == "" else said in found


def paths(config: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in config.items():
        found.append((*above, key))
        found += paths(value, (*above, key)) if isinstance(value, dict) else []
    return found


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 3, 10**6, 10**30, 1e300, math.nan, math.inf, -math.inf]),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=3)), max_size=2),
)
CHANGES = st.sampled_from(sorted(GOOD)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(paths(GOOD[name])), VALUES)
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CHANGES)
def test_any_value_of_any_key_has_an_answer_or_one_line(change: tuple[str, tuple[str, ...], Any]) -> None:
    name, (*path, leaf), value = change
    config = copy.deepcopy(GOOD[name])
    section = config
    for key in path:
        section = section[key]
    section[leaf] = value
    assert is_one_line(answer(json.dumps(config)))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([(name, path) for name in sorted(GOOD) for path in paths(GOOD[name])]))
def test_any_key_may_be_missing(left_out: tuple[str, tuple[str, ...]]) -> None:
    name, (*path, leaf) = left_out
    config = copy.deepcopy(GOOD[name])
    section = config
    for key in path:
        section = section[key]
    del section[leaf]
    assert is_one_line(answer(json.dumps(config)))
