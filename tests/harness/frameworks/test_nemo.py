"""NeMo's files, and recipes of NeMo 2 and Megatron Bridge by name (tests/data/nemo.yaml)."""

from pathlib import Path

import pytest
import yaml
from refusals import refused

from harness.frameworks.read import read_own_file, read_own_text
from harness.frameworks.recipes import bridge_recipe, bridge_recipes, nemo_recipe
from harness.frameworks.table import yaml_tree
from harness.question import Adapters

CASES = yaml.safe_load((Path(__file__).parents[2] / "data" / "nemo.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_file_is_read_or_refused_by_what_it_is(case):
    if "refused" in case:
        refused(lambda: read_own_text(case["text"], suffix=case["suffix"]), case["refused"])
        return
    question = read_own_text(case["text"], suffix=case["suffix"])
    expected = {field: tuple(one) if isinstance(one, list) else one for field, one in case["expect"].items()}
    if expected.get("adapters"):
        given = expected["adapters"]
        expected["adapters"] = Adapters(**{**given, "targets": tuple(given.get("targets", ()))})
    assert {field: getattr(question, field) for field in expected} == expected
    config = question.config or {}
    assert {key: config.get(key) for key in case.get("config", {})} == case.get("config", {})
    named = {one.key for one in question.keys if one.status == "not modelled"}
    assert set(case.get("named", ())) <= named
    assert not [one.key for one in question.keys if one.means.startswith("no key of")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3_8b_pretrain_4gpu_h100_bf16_config", ("Qwen/Qwen3-8B", 4, 1, 4096, 32, 4)),
        ("llama3_8b_16k_pretrain_config()", ("meta-llama/Meta-Llama-3-8B", 4, 2, 16384, 512, 16)),
        ("nemotronh_8b_pretrain_2gpu_h100_bf16_config", ("nvidia/Nemotron-H-8B-Base-8K", 2, 1, 8192, 768, 2)),
        ("llm.qwen3_32b.pretrain_recipe", ("Qwen/Qwen3-32B", 8, 1, 4096, 32, 16)),
    ],
)
def test_a_recipe_is_asked_by_its_name_alone(name, expected):
    question = read_own_file(name)
    found = (question.model_name, question.tp, question.cp, question.seq_len, question.global_batch_size)
    assert (*found, question.devices) == expected
    assert question.config is not None


def test_what_is_no_recipe_is_refused_with_the_nearest_or_with_what_it_is():
    refused(lambda: read_own_file("llama3_9b_pretrain_config"), "the nearest are llama3_8b_pretrain")
    refused(lambda: read_own_file("hyena_7b.pretrain_recipe"), "layers of several kinds")
    refused(lambda: read_own_file("gpt_oss_20b.pretrain_recipe"), "it has lora, full")


def test_every_recipe_has_its_sizes_and_a_batch_that_its_devices_divide():
    needed = {"seq_length", "global_batch_size", "hf_path"}
    for name in bridge_recipes():
        values = bridge_recipe(name)
        assert needed < values.keys(), name
        sizes = [values.get(f"{one}_model_parallel_size", 1) for one in ("tensor", "pipeline")]
        ranks = sizes[0] * sizes[1] * values.get("context_parallel_size", 1)
        assert values.get("world_size", ranks) % ranks == 0, name
    for name, listed in yaml_tree("recipes")["nemo"].items():
        for part in listed.split(";")[1:]:
            of = part.split()[0]
            task = "pretrain" if of == "pretrain" else "finetune"
            values = nemo_recipe(
                name, task, {"peft_scheme": "none" if of == "full" else of, "performance_mode": True}
            )
            assert needed < values.keys(), name
            assert ("peft.dim" in values) == (of == "lora"), name


def test_a_layout_of_stages_stays_next_to_a_recipe_whose_model_has_a_name():
    text = "recipe: llama31_405b_pretrain_config\nmodel.pipeline_model_parallel_size: 4\n"
    text += "model.pipeline_model_parallel_layout: Et*15|(t*16|)*6t*15L\n"
    question = read_own_text(text, suffix=".yaml")
    assert question.layers_of_stages == (15, *(16,) * 6, 15)
    assert question.virtual_stages == 2


def test_sizes_next_to_a_recipe_amend_its_model():
    """(Megatron-LM d98e8a6, tests/functional_tests/test_cases/gpt-nemo)"""
    begin = "nemo llm pretrain --factory {} trainer.devices=8 trainer.num_nodes=1 model.config.num_layers=12 "
    small = "model.config.hidden_size=768 model.config.num_attention_heads=16 model.config.num_moe_experts=4"
    question = read_own_text(begin.format("mixtral_8x7b") + "trainer.strategy.expert_model_parallel_size=4")
    sizes = ("model_type", "num_hidden_layers", "hidden_size", "num_local_experts", "num_experts_per_tok")
    assert [question.config[name] for name in sizes] == ["mixtral", 12, 4096, 8, 2]
    assert (question.ep, question.devices) == (4, 8)
    config = read_own_text(begin.format("llama3_8b") + small).config
    assert [config[name] for name in sizes] == ["mixtral", 12, 768, 4, 2]
    refused(lambda: read_own_text(begin.format("gemma2_2b") + small), "num_moe_experts=4")


def test_of_a_recipe_of_a_model_that_sees_the_language_model_is_answered_and_its_tower_named():
    question = read_own_file("qwen25_vl_7b_sft_2gpu_h100_bf16_config")
    assert (question.model_name, question.tp, question.devices) == ("Qwen/Qwen2.5-VL-7B-Instruct", 2, 2)
    assert (question.seq_len, question.micro_batch_size, question.global_batch_size) == (4096, 2, 32)
    named = {one.key: one.memory for one in question.keys if one.status == "not modelled"}
    assert named == {"vision_config": "raises", "dataset.unpacked": "lowers", "overlap_grad_reduce": "none"}


OWN = {"tokenizer.vocab_size"}
LATE, UNPACKED = {"overlap_grad_reduce"}, {"dataset.unpacked"}
DEFAULTS = [
    ("qwen3_8b_pretrain_config", set()),
    ("olmoe_7b_pretrain_config", OWN),
    ("qwen25_7b_pretrain_config", OWN | LATE),
    ("llama31_405b_sft_config", set()),
    ("llama3_70b_sft_config", LATE),
    ("qwen3_32b_peft_config", LATE),
    ("qwen3_30b_a3b_sft_config", set()),
    ("nemo llm finetune --factory qwen2_7b", UNPACKED),
    ("nemo llm finetune --factory 'qwen2_7b(packed_sequence=True)'", set()),
    ("nemo llm finetune --factory 'llama3_8b(performance_mode=True)'", set()),
]


@pytest.mark.parametrize(("text", "named"), DEFAULTS)
def test_what_the_code_of_recipes_leaves_as_it_is_by_default_is_named(text, named):
    """Whose tokenizer, whether data are packed, when gradients are reduced (recipes/common.py of both)."""
    question = read_own_text(text, suffix=".sh") if " " in text else read_own_file(text)
    found = {one.key for one in question.keys if one.status == "not modelled"}
    assert found & (OWN | LATE | UNPACKED) == named
