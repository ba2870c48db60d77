"""Refusals that ask for a word: giving just that word removes them."""

import re

import pytest
from own_texts import TITAN
from small_config import config

from harness.ask.lines import read_lines
from harness.ask.words import COST, FIT, question_from, step_question, words_of
from harness.config.validation import ConfigError

VERL = """python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B trainer.nnodes=1
    trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.n=4
""".replace("\n    ", " ")
LITGPT = "precision: bf16-true\nlora_query: true\nlora_head: false\ntrain:\n  max_seq_length: 64\n"
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
)
MEGATRON += "--seq-length 64 --micro-batch-size 1 --max-position-embeddings 64 --bf16"
ASKED = {  # by the word: a file, the refusal, and the word as it is then given
    "micro_batch_size": (VERL, "a.sh: actor_rollout_ref.* follows; give micro_batch_size=$", "=4"),
    "model": (LITGPT, "litgpt: it names no model; give model=PATH", "=MODEL devices=1"),
    "devices": (TITAN, "^devices: missing", "=8"),
    "vocab_size": (MEGATRON, "; give vocab_size=$", "=1024"),
    "gpus": ("", "^gpus: missing; give the number of GPUs, as gpus=128", "=8"),
}
SUFFIXES = {LITGPT: ".yaml", TITAN: ".toml"}


def said(argv, mode, read):
    """Return what a command says that it lacks, "" where nothing."""
    try:
        question = read(words_of(argv, mode))
        question.all_devices()
    except (ConfigError, ValueError) as error:
        return str(error)
    return "; ".join(key.means for key in question.keys if "; give " in key.means)


@pytest.mark.parametrize("word", ASKED)
def test_the_word_that_a_refusal_asks_for_removes_it(word, tmp_path):
    text, says, given = ASKED[word]
    file = tmp_path / f"a{SUFFIXES.get(text, '.sh')}"
    file.write_text(text)
    model = config(tmp_path)
    subject, mode, read = f"config={file}", FIT, question_from
    if not text:
        subject, mode, read = f"model={model}", COST, step_question

    def argv(further):
        return f"{subject} {further}".replace("MODEL", str(model)).split()

    assert re.search(says, said(argv(""), mode, read))
    assert said(argv(f"{word}{given}"), mode, read) == ""


TRL = "model_name_or_path: Qwen/Qwen3-0.6B\nper_device_train_batch_size: 1\nmax_length: 512\n"


@pytest.mark.parametrize(("devices", "asks"), [(8, 1), (1, 0)])
def test_a_launchers_file_is_asked_for_once_and_not_for_one_device(tmp_path, devices, asks):
    (tmp_path / "a.yaml").write_text(f"{TRL}learning_rate: 1e-5\n")
    question = question_from(words_of([f"config={tmp_path}/a.yaml", f"devices={devices}"], FIT))
    text = " ".join(" ".join(read_lines(question, True)).split())
    assert text.count("device=h100_80gb (no device was given)") == 1
    assert text.count("no accelerate or DeepSpeed file, which may shard the model: give it too") == asks
    assert "None" not in text.replace("rope", "")
    assert sum(key.field == "sharing" and key.status == "not modelled" for key in question.keys) == asks
