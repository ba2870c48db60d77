"""What fit, advise and cost refuse, in one short line that begins with the key; and files of questions."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from own_texts import TITAN
from small_config import config

from harness.ask import advise, fit
from harness.commands.entry import DONE, MISTAKE
from harness.commands.main import COMMANDS

LONGEST = 300

TABLE = """
# fit advise cost
model | model=none.json gpus=2
config=none.toml | config=none.toml gpus=2
colour | MODEL GPUS colour=red
devices=0 | MODEL devices=0
gpus | MODEL GPUS devices=16
tokens_per_batch=4M | MODEL GPUS TP tokens_per_batch=4M global_batch_size=4
global_batch_size=3 | MODEL GPUS TP global_batch_size=3
layout=qp:8 | MODEL GPUS layout=qp:8
etp=2 | MODEL GPUS layout=tp:2,etp:2
layout=zero:4 | MODEL GPUS layout=zero:4
tp × pp × cp | MODEL GPUS layout=tp:3
program=jax | MODEL GPUS TP program=jax
show=some | MODEL GPUS TP show=some
tp × pp × cp | FILE gpus=3
# fit advise
out | questions=CUT
seq_len | questions=CUT out=x seq_len=4
questions=none: No such file | questions=none out=x
questions=CUT: line 2 is not JSON | questions=CUT out=x
questions=LIST: line 2 is no question | questions=LIST out=x
# fit
model | model
model | gpus=2
devices | FILE
link: not used for bytes (harness.fit) | MODEL link=400gbit
mine: not used for bytes | MODEL mine=4s
seq_len=256 | MAMBA seq_len=256
device | MODEL device=0.1GB devices=2 TP
techniques.fsdp3 | MODEL techniques=[fsdp3]
devices=4 | MODEL devices=4 techniques=[mixed_precision]
techniques.tensor_parallel | MODEL devices=2 techniques=[tensor_parallel]
techniques: not used with layout= | MODEL devices=2 TP techniques=[fsdp2]
precision | MODEL techniques=[] precision=bf16
model={"hidden_size":8}: num_hidden_layers is missing | model={"hidden_size":8}
model: model_type | model={"model_type":"lama"}
model={"hidden | model={"hidden_size":
config: not JSON | config={"a":
config: no configuration | config={"a":1}
model: num_hidden_layers is -2; it must be a number of at least 1 | model={"num_hidden_layers":-2}
model={"hidden_size":8,"hidden_size":8}: hidden_size is given twice | model={"hidden_size":8,"hidden_size":8}
model_code=none:f: no module none | MODEL model_code=none:f
model_code='none': expected package.module:function | MODEL model_code=none
model_code: not used where tp | MODEL devices=2 TP model_code=suites.published.models:torchtune_llama
torch=new: expected a version | MODEL torch=new
imbalance=0 | MODEL devices=2 TP imbalance=0
imbalance=0.05: expected | MODEL devices=2 TP imbalance=0.05
imbalance=2: the model has no experts | MODEL devices=2 TP imbalance=2
imbalance=5: expected 1 to 4, where every token | MIXTRAL devices=2 TP imbalance=5
imbalance: not used by the dry run | MODEL imbalance=2
torch: not used by the account, which answers since a layout is asked about | MODEL devices=2 TP torch=2.4
oom=NOTHING | oom=NOTHING
write: not used for an out-of-memory message | oom=NOTHING write=torchtitan
seq_len: needs model= or config= | oom=NOTHING seq_len=4
# advise cost
gpus | MODEL
model_code: not used for | MODEL GPUS TP model_code=a:b
torch: not used for | MODEL GPUS TP torch=2.3
link=400GB/s | MODEL GPUS link=400GB/s
device=48GB | MODEL GPUS device=48GB
device=gpu_80gb | MODEL GPUS device=gpu_80gb
zero=1 | MODEL GPUS TP offload=optimizer
rate=1800 | MODEL GPUS TP rate=1800
price | MODEL GPUS TP price=2 rate=2
techniques: not used for | MODEL GPUS techniques=[]
# advise
model | gpus=2
mine: needs the layout | MODEL GPUS mine=4.1s
mine=0tflops: expected a rate above 0 | MODEL GPUS TP mine=0tflops
mine=45s,data:2s,data:3s: data: given twice | MODEL GPUS TP mine=45s,data:2s,data:3s
mine=fast | MODEL GPUS TP mine=fast
mine=NOTHING | MODEL GPUS TP mine=NOTHING
tokens: not used for seconds (harness.advise) | MODEL GPUS tokens=1e12
serve=70000 | MODEL GPUS serve=70000
mine=4s: the page | MODEL GPUS TP serve=0 mine=4s
gpus | MODEL serve=0
# cost
tokens=5 | MODEL GPUS TP tokens=5
prices=nobody | MODEL GPUS TP prices=nobody
rate and prices | MODEL GPUS TP rate=1 prices=rented_2026_07
FOLDER/none | FOLDER/none
expected one FOLDER | rate=2
price | FOLDER price=2 rate=2
rate=-2 | RESULTS rate=-2
rate=20/node | RESULTS rate=20/node
gpus_per_node=8 | RESULTS rate=20 gpus_per_node=8
gpus | RESULTS gpus=2
"""
"""Below the commands: what the line begins with, and the words, in which capitals stand for `places`."""


def rows():
    """Yield each row of the table for each of its commands."""
    commands: list[str] = []
    for line in TABLE.strip().splitlines():
        if line.startswith("# "):
            commands = line[2:].split()
            continue
        key, _, words = line.partition(" | ")
        yield from ((command, key, words) for command in commands)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Return what the table's capitals stand for."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "titan.toml").write_text(TITAN)
    (folder / "nothing.txt").write_text("nothing")
    (folder / "cut.jsonl").write_text('{"id": "a"}\n{"id":')
    (folder / "list.jsonl").write_text("\n[1, 2]\n")
    (folder / "mamba").mkdir()
    (folder / "mixtral").mkdir()
    (folder / "empty").mkdir()
    results = Path(__file__).parents[3] / "results/reference/cost"
    return {
        "MODEL": f"model={config(folder)}",
        "MAMBA": f"model={config(folder / 'mamba', model_type='mamba')}",
        "MIXTRAL": f"model={config(folder / 'mixtral', model_type='mixtral')}",
        "FILE": f"config={folder / 'titan.toml'}",
        "NOTHING": str(folder / "nothing.txt"),
        "CUT": str(folder / "cut.jsonl"),
        "LIST": str(folder / "list.jsonl"),
        "FOLDER": str(folder / "empty"),
        "RESULTS": str(results),
        "GPUS": "gpus=16",
        "TP": "layout=tp:2",
    }


@pytest.mark.parametrize(("command", "key", "words"), list(rows()))
def test_a_mistake_is_one_short_line_that_names_the_key(
    command, key, words, places, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, place in places.items():
        key, words = key.replace(f"={name}", f"={place}"), words.replace(name, place)
    assert import_module(COMMANDS[command]).main(words.split()) == MISTAKE
    said = capsys.readouterr()
    assert said.err.startswith(f"harness.{command}: {key.replace('FOLDER/', places['FOLDER'] + '/')}")
    assert said.err.count("\n") == 1
    assert len(said.err) <= LONGEST
    assert said.out == ""
    assert not list(tmp_path.iterdir())  # nothing is written


LLAMA = {
    "kind": "pretrain", "framework": "megatron", "model": "Llama-3.1-8B", "gpus": 16, "device": "H100",
    "seq_len": 8192, "tp": 2, "micro_batch_size": 1, "global_batch_size": 64, "precision": "bf16",
    "outcome": {"runs": True},
}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"id": "first", **LLAMA},
    {"id": "no such model", **LLAMA, "model": "nobody/knows"},
    {"id": "no such device", **LLAMA, "device": "abacus"},
    {"id": "of another kind", **LLAMA, "gpus": [8], "lora": 3},
    {"id": "last", **LLAMA, "tp": 4},
]


@pytest.mark.parametrize("command", [fit, advise], ids=["fit", "advise"])
def test_each_row_is_answered_or_refused_in_its_place(tmp_path, command):
    file, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    assert command.main([f"questions={file}", f"out={out}"]) == DONE
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["id"] for one in answers] == [row["id"] for row in ROWS]
    assert [one["verdict"] for one in answers] == ["depends", "refused", "refused", "refused", "fits"]
    for one in answers:
        refused = one["verdict"] == "refused"
        assert len(one["reason"].splitlines()) == refused
        assert ("peak_allocated_GB" in one) != refused
        assert ("step_s" in one) == (command is advise and not refused)
        assert one["answer_seconds"] >= 0
    if command is advise:
        assert answers[0]["step_low_s"] < answers[0]["step_s"] < answers[0]["step_high_s"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["answers.jsonl", "rows.jsonl"]
