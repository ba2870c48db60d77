"""harness.fit asked with a framework's own file or an out-of-memory message; nothing is dry-run here."""

import json
from pathlib import Path

import pytest
import yaml

from harness.commands.fit.command import main
from harness.commands.fit.own_file import oom_answer, own_question, written
from harness.commands.fit.question import question_of
from harness.config.own_files.read import read_own_text
from harness.config.validation import ConfigError

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 160,
    "vocab_size": 4000,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
AXOLOTL = {
    "base_model": "small",
    "sequence_len": 128,
    "micro_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "gradient_checkpointing": True,
    "fsdp_version": 2,
    "fsdp_config": {"reshard_after_forward": True},
    "tiled_mlp": True,
}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "axolotl.yml"
    path.write_text(yaml.safe_dump(AXOLOTL))
    return path


def test_a_file_becomes_the_question_that_its_words_would_ask(file, tmp_path):
    own = own_question([f"config={file}", "devices=2", f"out={tmp_path}"])
    techniques = "techniques=[fsdp2,mixed_precision,attention,{activation_checkpointing:{mode:full,every:1}},"
    assert f"{techniques}{{gradient_accumulation:{{steps:2,split:false}}}}]" in own.words
    question = question_of(own.words)
    ((_, fields),) = list(question.run.workloads.items())[:1]
    assert (question.devices, fields["seq_len"], fields["micro_batch_size"]) == (2, 128, 3)
    assert fields["hf_config"] == CONFIG
    text = "\n".join(own.lines(5))
    assert "as axolotl" in text
    assert "tiled_mlp=True" in text


def test_words_of_the_command_replace_what_the_file_says(file, tmp_path):
    own = own_question([f"config={file}", "devices=4", "seq_len=64", "techniques=[fsdp2]", f"out={tmp_path}"])
    assert {"devices=4", "seq_len=64", "techniques=[fsdp2]", "micro_batch_size=3"} < set(own.words)


def test_a_published_shape_is_written_as_a_config_json(tmp_path):
    path = tmp_path / "a.yml"
    path.write_text(yaml.safe_dump({**AXOLOTL, "base_model": "meta-llama/Llama-3.2-1B"}))
    own = own_question([f"config={path}", "devices=2", f"out={tmp_path}"])
    (model,) = [word.partition("=")[2] for word in own.words if word.startswith("model=")]
    assert json.loads(Path(model).read_text())["hidden_size"] == 2048
    assert "published shape" in "\n".join(own.lines(1))


@pytest.mark.parametrize(
    ("changes", "words", "says"),
    [
        ({"base_model": "nobody/knows-7b"}, ["devices=2"], "no published shape"),
        ({"dp_shard_size": 2, "tensor_parallel_size": 2}, ["devices=4"], "tp 2 is a layout"),
        ({}, [], "devices is missing"),
        ({"dp_shard_size": 2}, ["devices=6"], "the file says 2"),
        ({}, ["devices=2", "write=word"], "format 'word' is none of"),
        ({}, ["devices=2", "model=nobody/knows-7b"], "neither a config.json nor"),
    ],
)
def test_what_cannot_be_asked_is_one_line(file, tmp_path, changes, words, says):
    file.write_text(yaml.safe_dump({**AXOLOTL, **changes}))
    with pytest.raises(ConfigError) as raised:
        own_question([f"config={file}", f"out={tmp_path}", *words])
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 300


def test_the_answer_is_printed_as_another_frameworks_file():
    setup = read_own_text(
        yaml.safe_dump({**AXOLOTL, "base_model": "meta-llama/Llama-3.1-8B"}), suffix=".yaml"
    )
    other = read_own_text(written(setup, "hugging_face", 7), suffix=".json")
    assert (other.micro_batch_size, other.recompute, other.engine, other.zero) == (7, "full", "fsdp2", 3)
    titan = read_own_text(written(setup, "torchtune", 7), suffix=".yaml")
    assert titan.model == setup.model
    with pytest.raises(ConfigError, match="write=nanotron"):
        written(setup, "nanotron", 7)


def test_write_without_a_file_is_refused():
    with pytest.raises(ConfigError, match="needs config=FILE or layout="):
        own_question(["model=x", "write=torchtitan"])


def test_an_oom_message_is_explained(tmp_path, capsys, file):
    path = tmp_path / "error.txt"
    path.write_text(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 "
        "MiB. GPU 3 has a total capacity "
        "of 79.20 GiB of which 0.10 GiB is free. Including non-PyTorch memory, this "
        "process has 77.70 GiB memory in "
        "use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.25 GiB is "
        "reserved by PyTorch but "
        "unallocated."
    )
    assert main([f"oom={path}", f"config={file}", "devices=2"]) == 0
    text = capsys.readouterr().out
    assert "on rank 3" in text
    assert "3 heads" not in text
    assert "384 tokens × 4,000" in " ".join(text.split())
    assert "expandable_segments" in text


@pytest.mark.parametrize(
    ("content", "says"), [("nothing", "no out-of-memory message"), (None, "No such file")]
)
def test_what_is_no_oom_message_is_one_line(tmp_path, content, says):
    path = tmp_path / "error.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=says):
        oom_answer([f"oom={path}"])
