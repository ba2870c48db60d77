"""Trainers' files: their versions by keys, TRL's trainers, several files of one run, and post-training."""

import json
from pathlib import Path

import pytest
import yaml
from refusals import refused

from harness.ask.words import FIT, question_from, words_of
from harness.frameworks.read import read_own_files
from harness.question import Adapters

CASES = yaml.safe_load((Path(__file__).parents[2] / "data" / "trainers.yaml").read_text())


def files_of(texts, folder):
    """Write the files of a case; a mapping is JSON or YAML by the file's suffix."""
    for name, content in texts.items():
        text = json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content)
        (folder / name).write_text(content if isinstance(content, str) else text)


def read_values_of(question, expected):
    """Return the values of the fields that are expected, adapters as a mapping of those that are given."""
    values = {field: getattr(question, field) for field in expected}
    return {field: list(value) if isinstance(value, tuple) else value for field, value in values.items()}


@pytest.mark.parametrize("case", CASES["read"])
def test_a_trainers_files_are_read_as_what_they_are(case, tmp_path):
    one = CASES["read"][case]
    files_of(one["files"], tmp_path)
    question = read_own_files([str(tmp_path / name) for name in one.get("config", one["files"])])
    expected = dict(one["expect"])
    if expected.get("adapters"):
        targets = tuple(expected["adapters"].pop("targets", ()))
        expected["adapters"] = Adapters(**expected["adapters"], targets=targets)
    assert read_values_of(question, expected) == expected
    left_out = {key.key: key.memory for key in question.keys if key.status == "not modelled"}
    assert left_out == one.get("left_out", {})
    assert {key.key for key in question.keys if key.means.startswith("no key of")} == set()
    assumed = [name for name, origin in question.origins.items() if origin.kind == "assumption"]
    assert set(assumed) >= set(one.get("assumed", ()))


@pytest.mark.parametrize("case", CASES["refused"])
def test_files_that_do_not_go_together_are_refused_by_key(case, tmp_path):
    one = CASES["refused"][case]
    files_of(one["files"], tmp_path)
    paths = [str(tmp_path / name) for name in one.get("config", one["files"])]
    refused(lambda: read_own_files(paths), one["says"])


def test_several_files_are_asked_as_a_list(tmp_path):
    files_of(CASES["read"]["a trainer's file and a ds_config"]["files"], tmp_path)
    files = ",".join(str(tmp_path / name) for name in ("train.yaml", "ds.json"))
    question = question_from(words_of([f"config=[{files}]", "devices=8", "seq_len=512"], FIT))
    assert (question.sharing, question.zero, question.seq_len) == ("zero", 3, 512)


@pytest.mark.parametrize(("text", "devices", "expandable"), [
    ("stage: sft\ntemplate: qwen\n", 1, False), ("stage: sft\ntemplate: qwen\n", 2, True),
    ("train_dataset: x\nmodel_class: llm\n", 1, False), ("train_dataset: x\nmodel_class: llm\n", 2, True),
    ("stage: sft\ntemplate: qwen\ntensor_model_parallel_size: 1\nuse_distributed_optimizer: true\n", 1, True),
])  # fmt: skip
def test_llama_factorys_launcher_has_expandable_segments_of_several_devices(
    text, devices, expandable, tmp_path
):
    """(LLaMA-Factory ff6d4d1, launcher.py; Megatron's is started by torchrun whatever the devices)"""
    name = "model" if "model_class" in text else "model_name_or_path"
    (tmp_path / "a.yaml").write_text(f"{text}{name}: Qwen/Qwen3-0.6B\ncutoff_len: 512\n")
    question = question_from(words_of([f"config={tmp_path}/a.yaml", f"devices={devices}"], FIT))
    assert question.expandable_segments == expandable


@pytest.mark.parametrize(("allocator", "expandable"), [
    ("", True), ("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128 ", False),
    ("PYTORCH_ALLOC_CONF='expandable_segments:True' ", True),
])  # fmt: skip
def test_a_script_that_sets_the_allocator_keeps_torchtune_from_it(allocator, expandable, tmp_path):
    text = "model._component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 2\n"
    (tmp_path / "a.yaml").write_text(text + "optimizer._component_: torch.optim.AdamW\n")
    run = f"{allocator}tune run --nproc_per_node 2 full_finetune_distributed --config a.yaml batch_size=4\n"
    (tmp_path / "run.sh").write_text(run)
    question = read_own_files([str(tmp_path / name) for name in ("run.sh", "a.yaml")])
    assert question.expandable_segments == expandable
