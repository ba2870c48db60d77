"""Command lines of verl, OpenRLHF and ms-swift: what is trained, and what is left out with its direction."""

from pathlib import Path

import pytest
import yaml

from harness.frameworks.read import read_own_file, read_own_text
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


def test_distillation_on_data_alone_generates_nothing():
    text = "swift rlhf --rlhf_type gkd --model Qwen/Qwen3-8B --teacher_model t --max_length 4096"
    assert read_own_text(text, suffix=".sh").seq_len == 4096 + 512
    assert read_own_text(f"{text} --lmbda 0", suffix=".sh").seq_len == 4096


def test_a_list_of_layers_with_commas_is_its_names():
    text = "accelerate launch grpo_vlm.py --model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --use_peft "
    text += '--lora_target_modules "q_proj", "v_proj"'
    assert read_own_text(text, suffix=".sh").adapters.targets == ("q_proj", "v_proj")


def test_axolotls_section_of_trl_makes_it_no_file_of_trl():
    text = (
        "base_model: Qwen/Qwen2.5-1.5B\nrl: grpo\nnum_epochs: 1\noptimizer: adamw_torch\nsequence_len: 1024\n"
    )
    text += "trl:\n  use_vllm: true\n  num_generations: 4\n  max_completion_length: 256\n  loss_type: grpo\n"
    question = read_own_text(text + "gradient_checkpointing: true\n", suffix=".yaml")
    assert (question.format, question.seq_len) == ("axolotl", 512 + 256)


def test_verls_asynchronous_training_has_no_batch_of_prompts():
    text = "python3 -m verl.experimental.fully_async_policy.fully_async_main data.train_batch_size=0 "
    text += "data.max_prompt_length=1024 data.max_response_length=1024 actor_rollout_ref.rollout.n=4 "
    text += "actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    text += (
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.nnodes=1 trainer.n_gpus_per_node=4"
    )
    question = read_own_text(text, suffix=".sh")
    assert (question.global_batch_size, question.micro_batch_size, question.seq_len) == (128, 2, 2048)


def test_verls_engine_keeps_its_cache_where_it_is_not_freed():
    text = DATA["words"]["PPO"] + " " + DATA["words"]["MICRO"]
    for more, kept in (("", False), (" actor_rollout_ref.rollout.free_cache_engine=False", True)):
        keys = read_own_text(text + more, suffix=".sh").keys
        (engine,) = [one for one in keys if one.key.endswith("gpu_memory_utilization")]
        assert (engine.memory, "which it keeps" in engine.means) == ("raises", kept)


def test_adapters_that_were_saved_have_their_own_rank_and_layers(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 16, "target_modules": ["q_proj", "v_proj"]}')
    text = f"{DATA['words']['PPO']} {DATA['words']['MICRO']} actor_rollout_ref.model.lora_adapter_path="
    assert read_own_text(f"{text}{tmp_path}", suffix=".sh").adapters == Adapters(
        rank=16, targets=("q_proj", "v_proj")
    )
