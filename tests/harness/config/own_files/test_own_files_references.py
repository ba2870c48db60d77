"""Files that a file names: DeepSpeed's, accelerate's, and a model's config.json."""

import json

import pytest
import yaml

from harness.config.own_files.read import read_own_file, read_own_text


def test_a_deepspeed_file_next_to_it_is_read(tmp_path):
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
    )
    file = tmp_path / "axolotl.yml"
    file.write_text(
        "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ndeepspeed: some/folder/ds.json\n"
    )
    setup = read_own_file(file)
    assert (setup.engine, setup.zero, setup.offload) == ("zero", 2, ("optimizer",))


@pytest.mark.parametrize(
    ("file", "zero", "offload"),
    [
        ("zero3_bf16.json", 3, ()),
        ("zero2.json", 2, ("optimizer",)),
        ("ds_z3_offload_config.json", 3, ("optimizer", "parameters")),
    ],
)
def test_a_deepspeed_file_that_a_framework_ships_is_known_by_its_name(file, zero, offload):
    text = f"base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ndeepspeed: deepspeed_configs/{file}\n"
    setup = read_own_text(text, suffix=".yaml")
    assert (setup.engine, setup.zero, setup.offload) == ("zero", zero, offload)


def test_a_deepspeed_file_that_is_not_there_is_named():
    text = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\ndeepspeed: my.json\n"
    assert [one.key for one in read_own_text(text, suffix=".yaml").not_understood] == ["deepspeed"]


def test_a_config_json_next_to_it_is_the_model(tmp_path):
    (tmp_path / "mine").mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 8,
    }
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.yaml").write_text("base_model: mine\nsequence_len: 128\nmicro_batch_size: 1\n")
    setup = read_own_file(tmp_path / "a.yaml")
    assert setup.model == config
    assert setup.model_source.endswith("mine")


def test_accelerates_file_of_a_command_line_is_read(tmp_path):
    config = {
        "distributed_type": "FSDP",
        "num_processes": 16,
        "fsdp_config": {"fsdp_version": 2, "fsdp_offload_params": True},
    }
    (tmp_path / "acc.yaml").write_text(yaml.safe_dump(config))
    file = tmp_path / "run.sh"
    file.write_text(
        "accelerate launch --config_file acc.yaml sft.py --model_name_or_path gpt2 --num_train_epochs 1\n"
    )
    setup = read_own_file(file)
    assert (setup.engine, setup.zero, setup.devices) == ("fsdp2", 3, 16)
    assert setup.offload == ("optimizer", "parameters")
