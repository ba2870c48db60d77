"""Files: what is refused in one line (tests/data/bad_files.yaml), and files that a file names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from refusals import refused

from harness.config.code_fingerprint import ROOT
from harness.frameworks.read import read_own_file, read_own_text

BAD = yaml.safe_load((Path(__file__).parents[2] / "data" / "bad_files.yaml").read_text())
AXOLOTL = "base_model: meta-llama/Llama-3.1-8B\nsequence_len: 1024\n"


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_that_names_the_file_and_the_key(case, tmp_path):
    file = tmp_path / f"own{BAD[case]['suffix']}"
    file.write_text(BAD[case]["text"])
    assert str(file) in refused(lambda: read_own_file(file), BAD[case]["says"])


@pytest.mark.parametrize("name", ["folder", "missing.yaml", "binary.toml"])
def test_what_is_no_file_is_named(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    refused(lambda: read_own_file(tmp_path / name), name)


def test_a_deepspeed_file_next_to_it_is_read(tmp_path):
    section = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": section}))
    (tmp_path / "axolotl.yml").write_text(f"{AXOLOTL}deepspeed: some/folder/ds.json\n")
    question = read_own_file(tmp_path / "axolotl.yml")
    assert (question.sharing, question.zero, question.offload) == ("zero", 2, ("optimizer",))


@pytest.mark.parametrize(
    ("file", "zero", "offload"),
    [
        ("zero3_bf16.json", 3, ()),
        ("zero2.json", 2, ("optimizer",)),
        ("ds_z3_offload_config.json", 3, ("optimizer", "parameters")),
    ],
)
def test_a_deepspeed_file_that_a_framework_ships_is_known_by_its_name(file, zero, offload):
    question = read_own_text(f"{AXOLOTL}deepspeed: deepspeed_configs/{file}\n", suffix=".yaml")
    assert (question.sharing, question.zero, question.offload) == ("zero", zero, offload)


def test_a_deepspeed_file_that_is_not_there_is_named():
    question = read_own_text(f"{AXOLOTL}deepspeed: my.json\n", suffix=".yaml")
    assert [one.key for one in question.keys if one.status == "not modelled"] == ["deepspeed"]


def test_a_config_json_next_to_it_is_the_model(tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 8}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    (tmp_path / "a.yaml").write_text("base_model: mine\nsequence_len: 128\nmicro_batch_size: 1\n")
    question = read_own_file(tmp_path / "a.yaml")
    assert question.config == {"model_type": "llama", **sizes}
    assert question.model_source.endswith("mine")
    assert question.origin("config") == ("key", "base_model")


def test_accelerates_file_of_a_command_line_is_read(tmp_path):
    section = {"fsdp_version": 2, "fsdp_offload_params": True}
    config = {"distributed_type": "FSDP", "num_processes": 16, "fsdp_config": section}
    (tmp_path / "acc.yaml").write_text(yaml.safe_dump(config))
    command = (
        "accelerate launch --config_file acc.yaml sft.py --model_name_or_path gpt2 --num_train_epochs 1\n"
    )
    (tmp_path / "run.sh").write_text(command)
    question = read_own_file(tmp_path / "run.sh")
    assert (question.sharing, question.zero, question.devices) == ("fsdp2", 3, 16)
    assert question.offload == ("optimizer", "parameters")


@pytest.mark.parametrize(
    ("more", "seq_len", "left_out"), [("", 8192, True), ("max_prompt_length: 512\n", 8704, False)]
)
def test_the_sequence_of_grpo_is_the_prompt_and_the_completion(more, seq_len, left_out):
    text = (
        "model_name_or_path: Qwen/Qwen3-0.6B\nper_device_train_batch_size: 4\nmax_completion_length: 8192\n"
    )
    question = read_own_text(text + more, suffix=".yaml")
    assert question.seq_len == seq_len
    (key,) = [one for one in question.keys if one.key == "max_prompt_length"]
    assert (key.status, key.memory) == (("not modelled", "raises") if left_out else ("understood", "none"))


def test_a_file_of_a_single_device_recipe_is_of_one_device(tmp_path):
    text = "model._component_: torchtune.models.llama3_1.llama3_1_8b\noutput_dir: out\nbatch_size: 2\n"
    for name, devices in (("8B_full_single_device.yaml", 1), ("8B_full.yaml", None)):
        (tmp_path / name).write_text(text)
        assert read_own_file(tmp_path / name).devices == devices


def test_files_logs_and_messages_are_read_without_torch():
    code = (
        "import sys; from harness.frameworks.read import read_own_text; "
        "read_own_text('--num-layers 2 --hidden-size 8 --num-attention-heads 1 --micro-batch-size 1'); "
        "import harness.frameworks.logs, harness.frameworks.oom; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'suites', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
