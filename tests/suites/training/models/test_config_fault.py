"""A config.json with a wrong value anywhere: one line with the key and its value, or an answer."""

import copy
import json
import math
import random
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the extra `hf` brings it")

from harness.config.hf_config import workload_from_file
from harness.records import Unavailable
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.models import config_fault, huggingface_config
from suites.training.models.huggingface import build
from suites.training.techniques import build_step
from suites.training.workload import Workload

LINES = Path(__file__).with_name("small_configs.jsonl").read_text().splitlines()
BY_GROUP = {one["group"]: one["config"] for one in map(json.loads, LINES)}
GOOD = LLAMA, EXPERTS, NESTED = [BY_GROUP[name] for name in ("llama", "experts", "nested")]

BF16 = ["mixed_precision"]


@pytest.fixture(autouse=True)
def time_enough(monkeypatch):
    """Let no slow machine cut the search for the key at fault."""
    monkeypatch.setattr(config_fault, "LONGEST_S", 250.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


def dry_run_of(folder, config, techniques):
    """Return the dry run of a small step of a config.json's text."""
    file = folder / "config.json"
    file.write_text(config)
    fields = workload_from_file(file).fields
    fields["seq_len"] = min(16, fields["seq_len"])
    step = build_step(Workload.of({**fields, "optimizer_impl": "fused"}), techniques)
    return dry_run(step, Device("cuda"), reserved=False)


def answer(folder, text, techniques=BF16):
    """Return in a short line why a config.json has no dry run of a small step; "" where it has one."""
    try:
        assert dry_run_of(folder, text, techniques).peak_B > 0
    except (ValueError, Unavailable) as error:
        found = str(error).replace(str(folder / "config.json"), "config.json")
        assert "\n" not in found
        assert len(found) <= 300
        return found
    return ""


WRONG = [
    (LLAMA, {"hidden_act": 3}, "hidden_act is 3"),
    (LLAMA, {"hidden_act": "nope"}, 'hidden_act is "nope"'),
    (LLAMA, {"rope_scaling": {"rope_type": "nope"}}, 'rope_scaling.rope_type is "nope"'),
    (LLAMA, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic rotary embeddings"),
    (LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": "x"}}, 'rope_scaling.factor is "x"'),
    (LLAMA, {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
    (LLAMA, {"rms_norm_eps": 1}, "rms_norm_eps is 1; it must be a number with a decimal point"),
    (LLAMA, {"rms_norm_eps": math.nan}, "rms_norm_eps is NaN"),
    (LLAMA, {"attention_dropout": "0.1"}, 'attention_dropout is "0.1"'),
    (LLAMA, {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
    (LLAMA, {"intermediate_size": -5}, "intermediate_size is -5"),
    (LLAMA, {"vocab_size": 10**30}, "vocab_size is 1000000000000000000000000000000"),
    (LLAMA, {"num_attention_heads": 5, "num_key_value_heads": 5}, "is not a multiple of the number"),
    (LLAMA, {"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes"'),
    (LLAMA, {"model_type": "vit"}, "no causal or masked language model"),
    (LLAMA, {"pad_token_id": 10**6}, "pad_token_id is 1000000"),
    (EXPERTS, {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
    (EXPERTS, {"mlp_only_layers": ["a"]}, 'mlp_only_layers is ["a"]'),
    (NESTED, {"text_config": {**NESTED["text_config"], "hidden_activation": 4}},
     "text_config.hidden_activation is 4"),
]  # fmt: skip


def test_the_key_and_its_value_are_named(folder):
    for config, change, said in WRONG:
        assert said in answer(folder, json.dumps(config | change))


def test_what_is_no_config(folder):
    assert [answer(folder, json.dumps(config)) for config in GOOD] == [""] * 3
    assert "a is given twice" in answer(folder, '{"model_type": "llama", "a": 1, "a": 2}')
    assert "4300 digits" in answer(folder, '{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}")
    with pytest.raises(ValueError, match="is not a file"):
        workload_from_file(Path("/dev/zero"))


BNB = {"quant_method": "bitsandbytes"}
NF4 = {**BNB, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
QLORA, LORA_INT8 = [{"lora": {"base": "nf4"}}], [{"lora": {"base": "int8"}}]


def test_quantized_weights_are_honoured_or_refused(folder):
    for section, techniques, said in (
        ({"quant_method": "gptq", "bits": 4}, BF16, 'quant_method is "gptq"'),
        ({}, BF16, "quantization_config.quant_method is null"),
        (NF4, BF16, "techniques=[{lora: {base: nf4}}]"),
        (NF4, LORA_INT8, "techniques=[{lora: {base: nf4}}]"),
        (NF4, QLORA, "double_quantization: false"),
        (NF4, [{"lora": {"base": "nf4", "double_quantization": False}}], ""),
        (NF4 | {"bnb_4bit_use_double_quant": True}, QLORA, ""),
        ({**BNB, "load_in_8bit": True}, LORA_INT8, ""),
    ):
        found = answer(folder, json.dumps(LLAMA | {"quantization_config": section}), techniques)
        assert found == said if said == "" else said in found


def paths(config, above=()):
    found = []
    for key, value in config.items():
        found.append((*above, key))
        found += paths(value, (*above, key)) if isinstance(value, dict) else []
    return found


MISSING = "left out"
VALUES = [MISSING, None, True, 0, 1, 3, -7, 10**6, 10**30, 0.5, 1e300, math.nan, math.inf, -math.inf, "", "é",
          [], [None, 3, "x"], {}, {"a": 1}]  # fmt: skip


def test_any_value_of_any_key_has_an_answer_or_one_line(folder):
    chance = random.Random(0)
    for _ in range(20):
        config = copy.deepcopy(chance.choice(GOOD))
        *path, leaf = chance.choice(paths(config))
        section = config
        for key in path:
            section = section[key]
        section[leaf] = value = chance.choice(VALUES)
        if value == MISSING:
            del section[leaf]
        answer(folder, json.dumps(config))


def test_code_of_others_is_not_run_and_without_transformers_the_extra_is_named(monkeypatch):
    strange = LLAMA | {"auto_map": {"AutoModelForCausalLM": "somewhere/else--modeling.Theirs"}}
    assert type(build(strange).model).__name__ == "LlamaForCausalLM"
    monkeypatch.setattr(huggingface_config, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="`hf`"):
        build(LLAMA)
