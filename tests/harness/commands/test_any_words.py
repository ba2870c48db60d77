"""Whatever is typed ends with an answer or one short line: words drawn at random, from the grammar itself.

`COMMANDS=5000 pytest tests/harness/commands/test_any_words.py` tries more.
"""

import json
import os
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from own_texts import MEGATRON, TITAN

from harness.commands.command_line import INFO, SHORT, SHOWN, USAGE
from harness.commands.entry import DEPENDS, DONE, FAILED, MISTAKE, NO
from harness.commands.main import COMMANDS, main
from harness.config.code_fingerprint import ROOT
from harness.config.run import names
from harness.config.validation import ConfigError

COUNT = int(os.environ.get("COMMANDS", "150"))

LOG = """\
step 1 loss 4.5 time 2.1 s
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity \
of 79.20 GiB of which 1.50 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and \
6.25 GiB is reserved by PyTorch but unallocated.
"""

ROWS = (
    {"id": "a", "kind": "finetune", "model": "gpt2", "gpus": 8, "device": "h100_80gb", "seq_len": 512},
    {"id": "b", "kind": "pretrain", "model": 3, "gpus": "many"},
    {"id": "c"},
)
KEY = re.compile(r"(?:^|[ \[])([+~]?[a-z][\w.]*)=", re.MULTILINE)  # a key of KEY=VALUE in a usage

DEEP = {"suite.workloads.gpt_5m.seq_len", "suite.hf_defaults.seq_len", "limits", "suite.tiny"}


def usage_of(command: str) -> str:
    return str(getattr(import_module(COMMANDS[command]), "USAGE", "")) if command else USAGE


def keys_of(command: str) -> list[str]:
    found = set(KEY.findall(usage_of(command))) - {"NAME", "install"}
    return sorted(found if command else found | DEEP)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files and folders that words name, some of which are no use."""
    path = tmp_path_factory.mktemp("typed")
    for folder in ("results", "bad_results"):
        (path / folder).mkdir()
    committed = ROOT / "results/reference/interconnect_formula"
    config = (ROOT / "tests/data/configs/gpt2.json").read_text()
    for name, text in {
        "config.json": config,
        "half.json": config[:100],
        "list.json": "[1, 2]",
        "empty.json": "",
        "trace.json": json.dumps({"traceEvents": []}),
        "other.json": json.dumps({"traceEvents": [{"ph": "X", "ts": "now", "dur": -1, "name": 3}]}),
        "train.log": LOG,
        "titan.toml": TITAN,
        "run.sh": MEGATRON,
        "rows.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "results/plan.json": (committed / "plan.json").read_text(),
        "results/records.jsonl": (committed / "records.jsonl").read_text(),
        "bad_results/plan.json": '{"suite": 3}',
        "bad_results/records.jsonl": '{"schema": 1}\nnonsense\n',
    }.items():
        (path / name).write_text(text)
    for file in (ROOT / "tests/data/frameworks").glob("*.yaml"):
        (path / file.name).write_bytes(file.read_bytes())
    shutil.copy(ROOT / "tests/data/traces/communication_without_nccl.json", path / "steps.json")
    (path / "mixture.json").write_bytes((ROOT / "tests/data/small_configs/mixtral.json").read_bytes())
    (path / "binary.json").write_bytes(bytes(range(256)))
    return path


FILES = ("config.json", "half.json", "list.json", "empty.json", "binary.json", "trace.json", "other.json")
FOLDERS = ("results", "bad_results", ".", "nowhere", "results/plan.json")
SIMPLE = (
    *["1", "0", "-1", "2.5", "nan", "1e400", "1e9999999", "true", "null", "''", "[]", "{}", "[", "{a"],
    "a: b",
)
ODD = (
    "${suite}", "${oc.env:HOME}", "???", "'", '"', "\\", "=", "%s", "{0}",
    "\u00fc", "\u6f22", "\U0001f600", "\x07", "a\nb",
)  # fmt: skip
MEANT = (
    *names("suite"), *names("hardware")[:4], "gpt_5m", "[gpt_5m]", "[fsdp2,mixed_precision]", "[zero3]",
    "quick", "answer", "local", "24GB", "h100", "[a,b]", "zero: {stage: 3}", "[zero: {stage: 9}]", "gpu",
)  # fmt: skip

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
long = st.builds(lambda one, times: one * times, st.sampled_from("a[{9,$"), st.sampled_from((400, 5000)))
value = st.one_of(st.sampled_from((*SIMPLE, *ODD, *MEANT, *FILES, *FOLDERS)), text, long)

PARTS = ("dp", "tp", "pp", "cp", "ep", "etp", "zero", "virtual_stages", "shard_size", "xp")
parts = st.builds("{}{}{}".format, st.sampled_from(PARTS), st.sampled_from((":", "=", "")), st.integers(0, 9))
layout = st.one_of(st.just("search"), st.lists(parts, max_size=4).map(",".join))
own_file = st.sampled_from(
    ("titan.toml", "run.sh", *sorted(one.name for one in (ROOT / "tests/data/frameworks").glob("*.yaml")))
)
model = st.sampled_from(("config.json", "mixture.json"))
count = st.sampled_from(("1", "2", "8", "64", "100", "4096"))
MEANT_BY_KEY = """
    oom               train.log config.json
    mine              4.1s 850ms 0s train.log config.json
    link              400gbit 3200gbit/node 400gbit,efa 50gb/s 1tbit 1gbit,ethernet
    tokens_per_batch  4M 512k 4194304 1 1.5B
    write             torchtitan megatron nanotron hugging_face axolotl deepspeed
    program           megatron torchtitan nanotron deepspeed composer
    precision         bf16 fp8 mxfp8 nvfp4 fp32
    recompute         none full selective
    device            h100_80gb 24GB 44.5GiB v100_32gb b200_180gb
    optimizer         adamw sgd_momentum adafactor adamw_8bit muon
    techniques        [] [fsdp2,mixed_precision] [zero] [qlora] [ddp]
    price             2.5 20/node
    questions         rows.jsonl config.json
    what_ifs          true false all
    rate              2.5 1800/month 20/node 14000/node/month
    against           steps.json trace.json
    peak              989e12 h100_80gb
    communication     [a,b] [push] [(] push
"""
RIGHT = {
    **{key: st.sampled_from(meant) for key, *meant in map(str.split, MEANT_BY_KEY.strip().splitlines())},
    "model": model,
    "config": st.one_of(own_file, model),
    "layout": layout,
    "suite": st.sampled_from(tuple(names("suite"))),
    "from_results": st.sampled_from(FOLDERS),
    **dict.fromkeys(
        ("seq_len", "micro_batch_size", "global_batch_size", "gpus", "gpus_per_node", "devices"), count
    ),
}
"""Values that are meant, by key; with other keys they need not be right."""

BEGINNINGS = {
    "": ([], ["suite"], ["suite", "techniques"]),
    "fit": (["model"], ["model", "layout", "devices"], ["config"], ["oom"], ["config", "oom"], ["questions"]),
    "advise": (["model", "gpus"], ["model", "gpus", "layout", "mine"], ["config", "gpus", "mine"]),
    "cost": (["model", "gpus"], ["config", "gpus", "rate"], ["a path"]),
    "profile": (["a path"], ["a path", "communication"]),
    "compare": (["a path", "a path"],),
}
"""Keys that a command is likely to begin with."""

FILES_AND_FOLDERS = (*FILES, "steps.json", "train.log", "deepspeed.yaml", *FOLDERS)


@st.composite
def words_of(draw: st.DrawFn, command: str) -> list[str]:
    meant = keys_of(command)
    known = (*meant, "sute", "modle", "+x", "~seed", "")

    def right(key: str) -> st.SearchStrategy[str]:
        if key == "a path":
            return st.sampled_from(FILES_AND_FOLDERS)
        return st.builds(lambda one: f"{key}={one}", RIGHT.get(key, value))

    pair = st.builds(lambda key, one: f"{key}={one}", st.one_of(st.sampled_from(known), text), value)
    flag = st.sampled_from(
        (*SHOWN, *SHORT, "--resolve", "--run", "--fail-above", "--json", "--what", "-", "--", *INFO)
    )
    alone = st.one_of(st.sampled_from((*FILES_AND_FOLDERS, "list", "plan", "suites", "techniques")), text)
    keys = draw(st.sampled_from(BEGINNINGS[command]))
    words = [draw(right(key)) for key in keys] if draw(st.integers(0, 3)) else []
    further = st.one_of(st.sampled_from(meant).flatmap(right), pair, flag, alone) if meant else alone | flag
    return words + draw(st.lists(further, max_size=4))


@pytest.fixture(scope="module", autouse=True)
def nothing_is_run(folder):
    """Stop where cells, a dry run or a server would be run: what is tried is all that comes before."""

    def stopped(*arguments, **named):
        raise ConfigError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("sweep", "planned_sweep"):
            patch.setattr(f"harness.commands.suites.{name}", stopped)
        patch.setattr("harness.preset.programme.planned_programme", stopped)
        patch.setattr("harness.ask.engines.DryRunChild.answers", stopped)
        patch.setattr("harness.ask.page.server.listener", stopped)
        patch.chdir(folder)
        yield


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", ["", *COMMANDS])
@given(data=st.data())
@settings(
    max_examples=max(1, COUNT // (1 + len(COMMANDS))),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_any_words_end_with_an_answer_or_one_line(command, data):
    words = data.draw(words_of(command))
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([command, *words] if command else words)
    said = [line for line in err.getvalue().splitlines() if line.strip()]
    damaged = status == FAILED and any("bad_results" in word for word in words)
    assert status in (DONE, MISTAKE, NO, DEPENDS) or damaged, (status, said)
    assert "Traceback" not in err.getvalue()
    if status == MISTAKE and words:
        name, _, message = said[-1].partition(": ")
        assert name == (f"harness.{command}" if command else "harness")
        assert len(message) <= 300, message
        assert len(said) == 1, said
