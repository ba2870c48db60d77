"""Command lines of verl, OpenRLHF and ms-swift: what is trained, and what is left out with its direction."""

from pathlib import Path

import pytest
import yaml

from harness.frameworks.read import read_own_file, read_own_text
from harness.frameworks.table import Parts
from harness.frameworks.words import keeps_fp32, name_undivided
from harness.question import Adapters

DATA = yaml.safe_load((Path(__file__).parents[2] / "data" / "post_training.yaml").read_text())


@pytest.mark.parametrize("command", DATA["commands"])
def test_what_is_trained_is_read_and_the_rest_is_named(command):
    text = command
    for word, meaning in DATA["words"].items():
        text = text.replace(word, meaning) if f"{word}_" not in text else text
    question = read_own_text(text, suffix=".sh")
    assert question.format in ("verl", "openrlhf", "ms_swift")
    for field, value in DATA["commands"][command].get("expect", {}).items():
        value = Adapters(**value) if isinstance(value, dict) else value
        assert getattr(question, field) == (tuple(value) if isinstance(value, list) else value), field
    left = {one.key: one.memory for one in question.keys if one.status == "not modelled"}
    for key, memory in DATA["commands"][command].get("named", {}).items():
        assert left.get(key) == memory, key
    assert not [one.key for one in question.keys if one.means.startswith("no key")]


def test_a_dumped_configuration_of_verl_is_read_with_its_references(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "actor_rollout_ref:\n  model: {path: Qwen/Qwen3-8B, use_fused_kernels: true}\n"
        "  actor:\n    strategy: fsdp2\n    fsdp_config: {strategy: fsdp}\n"
        "    ppo_micro_batch_size_per_gpu: 2\n"
        "    use_fused_kernels: '${oc.select:actor_rollout_ref.model.use_fused_kernels,false}'\n"
        "  ref: {strategy: '${actor_rollout_ref.actor.strategy}'}\n"
        "  rollout: {n: 4, response_length: '${oc.select:data.max_response_length,512}'}\n"
        "data: {max_prompt_length: 512, max_response_length: '${data.max_prompt_length}'}\n"
    )
    question = read_own_file(tmp_path / "config.yaml")
    assert (question.sharing, question.seq_len, question.micro_batch_size) == ("fsdp2", 1024, 2)
    assert question.fused_loss


def test_a_configuration_of_verl_has_megatron_by_its_defaults():
    text = "defaults: [{actor@actor_rollout_ref.actor: megatron_actor}, _self_]\n"
    text += "actor_rollout_ref: {model: {path: Qwen/Qwen3-8B}}\n"
    assert read_own_text(text, suffix=".yaml").sharing == "megatron"


def test_a_list_of_layers_with_commas_is_its_names():
    text = "accelerate launch grpo_vlm.py --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --use_peft "
    text += '--lora_target_modules "q_proj", "v_proj"'
    assert read_own_text(text, suffix=".sh").adapters.targets == ("q_proj", "v_proj")


def test_adapters_that_were_saved_have_their_own_rank_and_layers(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 16, "target_modules": ["q_proj", "v_proj"]}')
    text = f"{DATA['words']['PPO']} {DATA['words']['MICRO']} actor_rollout_ref.model.lora_adapter_path="
    assert read_own_text(f"{text}{tmp_path}", suffix=".sh").adapters == Adapters(
        rank=16, targets=("q_proj", "v_proj")
    )
    (tmp_path / "run.sh").write_text(f"{text}saved")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "adapter_config.json").write_text('{"r": 4}')
    assert read_own_file(tmp_path / "run.sh").adapters.rank == 4  # next to the script


@pytest.mark.parametrize(("config", "says"), [
    ("[]", "no JSON object"), ("{", "no JSON object"), ('{"r": "x"}', "r is 'x'"),
    ('{"r": [1]}', r"r is \[1\]"),
])  # fmt: skip
def test_a_file_of_saved_adapters_that_is_odd_is_refused_in_one_line(config, says, tmp_path):
    (tmp_path / "adapter_config.json").write_text(config)
    text = f"{DATA['words']['PPO']} {DATA['words']['MICRO']} actor_rollout_ref.model.lora_adapter_path="
    with pytest.raises(ValueError, match=f"adapter_config.json: .*{says}"):
        read_own_text(f"{text}{tmp_path}", suffix=".sh")


@pytest.mark.parametrize(("sequences", "micro", "ranks", "says"), [
    (128, 2, 8, None), (130, 2, 8, "2 × 8 ranks do not divide the 130 sequences"),
    (24, 2, 8, "2 does not divide the 3 sequences of a rank"), (4, 1, 8, "1 × 8 ranks do not divide"),
])  # fmt: skip
def test_a_batch_is_whole_micro_batches_of_every_rank(sequences, micro, ranks, says):
    """deepspeed 0.19.8, runtime/config.py, _batch_assertion: batch = micro × accumulation × ranks."""
    parts = Parts({})
    name_undivided("micro", sequences, micro, ranks, "DeepSpeed", parts)
    assert [one.means.startswith(says or "-") for one in parts.left_out] == ([True] if says else [])


@pytest.mark.parametrize(("name", "wide"), [
    ("lion_32bit", True), ("ademamix", True), ("paged_ademamix_32bit", True), ("rmsprop_bnb", True),
    ("ademamix_8bit", False), ("lion_8bit", False), ("adamw_torch", False),
])  # fmt: skip
def test_states_of_bitsandbytes_are_in_fp32(name, wide):
    """transformers 5.23.0, training_args.py, OptimizerNames."""
    assert keeps_fp32(name) == wide
