"""Framework's own files as questions about layouts: the words they become; nothing is run here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_texts import MEGATRON, TITAN

from harness.commands.advise.own_run import own_run
from harness.commands.advise.question import KEYS as ADVISE_KEYS
from harness.commands.cost import predicted
from harness.commands.fit import layouts
from harness.commands.fit.command import main
from harness.commands.fit.own_layout import own_layout
from harness.commands.fit.question import KEYS
from harness.commands.fit.written_layout import answered_setup, written_layout
from harness.config.own_files.read import read_own_text
from harness.config.validation import ConfigError

MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 32768,
}  # fmt: skip
NANOTRON = """
parallelism: {dp: 4, tp: 2, pp: 2, pp_engine: 1f1b, tp_mode: ALL_REDUCE}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 8, sequence_length: 2048}
optimizer: {zero_stage: 1}
model:
  dtype: bfloat16
  model_config: {num_hidden_layers: 16, hidden_size: 2048, intermediate_size: 8192, num_attention_heads: 32,
    num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 4096, tie_word_embeddings: true}
"""


def asked(tmp_path: Path, text: str, *words: str, name: str = "run.txt"):
    """Return the question of a file's text."""
    path = tmp_path / name
    path.write_text(text)
    own = own_layout([f"config={path}", f"out={tmp_path}", *words], KEYS)
    assert own is not None
    return own, layouts.question_of(own.words)


def test_megatrons_arguments_are_a_layout_with_all_that_they_say(tmp_path):
    own, question = asked(tmp_path, MEGATRON)
    fields = question.workload
    by_hand = {
        "gpus": 32,
        "tp": 4,
        "pp": 2,
        "virtual_stages": 4,  # 32 layers of which each stage has 4, on 2 ranks
        "zero": 1,
        "recompute": "selective",
        "sequence_parallel": False,
        "micro_batch_size": 2,
        "global_batch_size": 256,
        "seq_len": 4096,
        "program": "megatron",
        "search": False,
    }
    assert {name: fields[name] for name in by_hand} == by_hand
    assert "moe_expert_capacity_factor" in "\n".join(own.lines())


def test_megatrons_modules_and_dispatcher_are_asked_about_and_seconds_have_none(tmp_path):
    text = MEGATRON.replace(
        "--recompute-activations",
        "--recompute-granularity selective --recompute-modules mlp layernorm --num-experts 8 "
        "--moe-router-topk 2 --expert-model-parallel-size 4",
    )
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MIXTRAL))
    _, question = asked(tmp_path, text, f"model={config}")
    assert question.workload["recompute_modules"] == ["mlp", "layernorm"]
    assert question.workload["dispatcher"] == "allgather"  # its default
    path = tmp_path / "run.txt"
    advised = own_run([f"config={path}", f"out={tmp_path}", f"model={config}"])
    assert advised is not None
    assert "dispatcher allgather, of which seconds are not modelled" in "; ".join(advised.own.left_out)


def test_torchtitans_file_has_the_ranks_that_the_command_leaves(tmp_path):
    own, question = asked(tmp_path, TITAN, "devices=16", name="a.toml")
    fields = question.workload
    assert (fields["tp"], fields["zero"], fields["program"], fields["recompute"]) == (
        2,
        3,
        "torchtitan",
        "full",
    )
    assert fields["global_batch_size"] is None  # of memory: a larger micro-batch makes the batch larger
    assert "dp 8" in "\n".join(layouts_title(fields))
    assert not own.left_out


def layouts_title(fields):
    yield f"dp {fields['gpus'] // (fields['tp'] * fields['pp'] * fields['cp'])}"


def test_a_compiled_step_is_asked_about_as_one_and_a_published_name_is_a_model(tmp_path):
    own, question = asked(
        tmp_path, TITAN + "[compile]\nenable = true\n", "devices=16", "model=Llama-3.2-1B", name="a.toml"
    )
    assert question.workload["compiled"] is True
    assert question.workload["hf_config"]["hidden_size"] == 2048
    assert own.left_out == ("what torch.compile saves of memory",)


def test_nanotrons_batch_follows_from_its_steps(tmp_path):
    _, question = asked(tmp_path, NANOTRON, name="a.yaml")
    fields = question.workload
    assert fields["global_batch_size"] == 2 * 8 * 4
    assert (fields["gpus"], fields["sequence_parallel"], fields["program"]) == (16, False, "nanotron")


def test_words_of_the_command_replace_what_the_file_says(tmp_path):
    _, question = asked(tmp_path, MEGATRON, "micro_batch_size=4", "recompute=full", "global_batch_size=512")
    fields = question.workload
    assert (fields["micro_batch_size"], fields["recompute"], fields["global_batch_size"]) == (4, "full", 512)
    _, question = asked(tmp_path, MEGATRON, "layout=tp:8,zero:0")
    assert (question.workload["tp"], question.workload["pp"], question.workload["gpus"]) == (8, 1, 32)
    assert asked(tmp_path, MEGATRON, "layout=search")[1].search


def test_a_file_without_such_a_layout_is_left_to_the_dry_run(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(TITAN.replace("tensor_parallel_degree = 2", "tensor_parallel_degree = 1"))
    assert own_layout([f"config={path}", "devices=8"], KEYS) is None
    assert own_layout(["model=x"], KEYS) is None


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (MEGATRON, ["devices=12"], "devices=12 is no multiple of tp 4 × pp 2"),
        (TITAN, [], "devices is missing"),
        (MEGATRON.replace("--bf16", "").replace("--micro", " --micro"), [], "precision fp32 is not in the"),
        (MEGATRON.replace("--global-batch-size 256", "--global-batch-size 255"), [], "no multiple of micro"),
        (MEGATRON, ["model=nobody/knows-7b"], "neither a config.json nor"),
        (MEGATRON, ["layout=qp:8"], "layout=qp:8: no such name"),
        (
            MEGATRON,
            ["layout=tp:2,sequence_parallel:2"],
            "expected sequence_parallel:0 or sequence_parallel:1",
        ),
        (MEGATRON, ["techniques=[fsdp2]"], "techniques: no such name"),
        (MEGATRON, ["write=word"], "format 'word' is none of"),
    ],
    ids=lambda value: str(value)[-30:],
)
def test_a_mistake_is_one_line_and_exit_status_2(tmp_path, capsys, text, words, says):
    path = tmp_path / ("a.toml" if text == TITAN else "a.sh")
    path.write_text(text)
    assert main([f"config={path}", f"out={tmp_path}", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert len(error) <= 301


ADAPTERS = {
    "base_model": "meta-llama/Llama-3.2-1B",
    "adapter": "lora",
    "lora_r": 8,
    "bf16": True,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "sequence_len": 2048,
}


def test_adapters_are_refused_by_the_adviser(tmp_path):
    path = tmp_path / "a.yml"
    path.write_text(json.dumps(ADAPTERS))
    with pytest.raises(ConfigError, match="adapters on a frozen model are not in the account"):
        own_run([f"config={path}", "gpus=8"])


def test_the_adviser_asks_about_the_files_layout_and_about_all(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(TITAN)
    run = own_run([f"config={path}", "gpus=16", "mine=900ms", f"out={tmp_path}"])
    assert (run.asked.search, run.others.search, run.asked.mine_s) == (False, True, 0.9)
    batch = 2 * 8  # no accumulation: micro-batch 2 on 8 data-parallel ranks
    assert {run.asked.workload["global_batch_size"], run.others.workload["global_batch_size"]} == {batch}
    assert (run.asked.workload["micro_batch_size"], run.others.workload["micro_batch_size"]) == (2, 1)
    assert own_run(["model=x", "gpus=8"]) is None


def test_the_adviser_takes_the_gpus_of_the_file(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text(MEGATRON)
    assert own_run([f"config={path}", f"out={tmp_path}"]).asked.gpus == 32
    path.write_text(MEGATRON.replace("--nproc_per_node 8 --nnodes 4", ""))
    with pytest.raises(ConfigError, match="gpus"):
        own_run([f"config={path}", f"out={tmp_path}"])


LINE = (
    " iteration {:8d}/  500000 | consumed samples: 2560 | elapsed time per iteration (ms): {:.1f} | "
    "throughput per GPU (TFLOP/s/GPU): 300.0 | global batch size:   256 | lm loss: 1.0E+01 |\n"
)


def test_a_log_is_ones_own_step_with_its_flops_counted_as_here(tmp_path):
    path, log = tmp_path / "a.sh", tmp_path / "train.log"
    path.write_text(MEGATRON)
    log.write_text("".join(LINE.format(10 * n, s) for n, s in enumerate([90000, 4000, 4100, 4200], 1)))
    run = own_run([f"config={path}", f"mine={log}", f"out={tmp_path}"])
    assert run.asked.mine_s == pytest.approx(4.1)
    matrices = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    scores = 12 * 32 * 4096 * 4096
    ours = 300 * (6 * matrices + scores) / (6 * matrices + scores / 2)
    said = " ".join(run.asked.mine_said)
    assert f"they are {ours:.0f}." in said
    assert "the first 1 are left out" in said
    tokens_per_gpu = 256 * 4096 / 32 / 4.1
    assert f"{tokens_per_gpu:,.0f} tokens/s per GPU" in said
    by_megatron = tokens_per_gpu * (6 * matrices + scores / 2) / 1e12
    assert (
        f"{by_megatron:.0f} as megatron, {tokens_per_gpu * (6 * matrices + scores) / 1e12:.0f} as nanotron"
        in said
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "expected the seconds of your step"),
        ("", "it is empty"),
        ("CUDA out of memory", "give it as oom="),
        ("hello", "its first line is 'hello'"),
    ],
)
def test_what_is_no_log_is_one_line(tmp_path, content, says):
    path, log = tmp_path / "a.sh", tmp_path / "train.log"
    path.write_text(MEGATRON)
    if content is not None:
        log.write_text(content)
    with pytest.raises(ConfigError, match=says) as raised:
        own_run([f"config={path}", f"mine={log}"])
    assert "\n" not in str(raised.value)


class FakeRecord:
    """A record of an answer, of which `parts` alone is read."""

    notes = (
        "parts: dp:16,tp:2,pp:1,cp:1,ep:1,etp:1,virtual_stages:1,zero:1,shard_size:16,micro_batch_size:2,"
        "micro_batches:8,recompute:2,sequence_parallel:1",
    )


@pytest.mark.parametrize(("format_", "suffix"), [("megatron", ""), ("nanotron", ".yaml")])
def test_the_answer_is_written_as_a_file_that_says_it_again(tmp_path, format_, suffix):
    own, question = asked(tmp_path, MEGATRON)
    found = answered_setup(FakeRecord(), question.workload, own.setup)
    lines = list(written_layout(found, format_))
    again = read_own_text("\n".join(line for line in lines if not line.endswith(".")), format_, suffix)
    assert (again.tp, again.pp, again.zero, again.micro_batch_size, again.recompute) == (2, 1, 1, 2, "full")
    assert again.micro_batches(32) == 8
    assert not any("cannot say" in line for line in lines)


def test_what_a_format_cannot_say_is_a_line(tmp_path):
    own, question = asked(tmp_path, MEGATRON)
    found = answered_setup(FakeRecord(), question.workload, own.setup)
    assert "This file cannot say all of the answer: zero 3 for 1." in list(
        written_layout(found, "torchtitan")
    )
    with pytest.raises(ConfigError, match="write=llm_foundry"):
        list(written_layout(found, "llm_foundry"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["price=2", "rate=2"], "price=2: rate or prices is given, too"),
        (["price=free"], "price=free: expected dollars per GPU-hour"),
        (["tokens=5"], "tokens=5: expected at least 1e"),
        (["prices=nobody"], "prices=nobody"),
        (["colour=red"], "colour: no such name"),
        (["mine=4s"], "mine: no such name"),
    ],
)
def test_a_mistake_about_a_predicted_cost_is_one_line(tmp_path, words, says):
    path = tmp_path / "a.sh"
    path.write_text(MEGATRON)
    with pytest.raises(ConfigError, match=says) as raised:
        predicted.answer([f"config={path}", f"out={tmp_path}", *words])
    assert "\n" not in str(raised.value)


def test_the_words_of_a_file_are_the_advisers():
    assert {"config", "write", "mine"} < set(ADVISE_KEYS)
