"""What commands refuse, in one short line that begins with the key; and files of questions."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from own_texts import TITAN
from small_config import config

from harness.ask import advise, fit
from harness.commands.entry import DONE, MISTAKE
from harness.commands.main import COMMANDS, main
from harness.config.code_fingerprint import ROOT

LONGEST = 300

TABLE = """
# harness
suit: no such name; did you mean suite? | suit=memory
model: no such name; use suite.workload_from='x.json' | model=x.json
memory: expected KEY=VALUE; did you mean suite=memory? | memory
suite=memry: no such name; did you mean memory? | suite=memry
only: suite=all runs every suite | suite=all only=[fsdp2]
executor.workers | suite=kernels executor.workers=2
suite.sampling.rounds: here suite.workloads.NAME.placements | suite=fabric suite.sampling.rounds=6
suite.optimizations.e_ecmp.settings.queue_pair | suite=fabric suite.optimizations.e_ecmp.settings.queue_pair=4
techniques: suite fabric takes none | suite=fabric techniques=[fsdp2]
suite=kernels,memory: expected one value | suite=kernels,memory
seed: list takes suite=NAME alone | list seed=3
xxx | from_results=LONG
from_results=nowhere: no such results folder | from_results=nowhere
preset=cpu: no such name; did you mean gpu? allowed: gpu | preset=cpu
suite=memory: preset chooses what is run; allowed with it: preset | preset=gpu suite=memory
budget_min=0: expected a number above 0 | preset=gpu budget_min=0
only=[baseline]: preset chooses what is run | suite=all budget_min=10 only=[baseline]
out: missing; from_results=[A,B] writes an index | from_results=[nowhere,conf]
--config-name: conf/ | --config-name other
--package: only with --cfg | --package limits suite=memory
--hepl: no such option; did you mean --help? | --hepl
--shell-completion install=csh: expected install=bash | -sc install=csh
--info and list: one at a time | list --info
suite=all: a configuration is shown for one suite | suite=all --cfg job
# memory
suite: given twice | only=[fsdp2] suite=kernels
suite.sampling.rounds: the cells of this suite are not | suite.sampling.rounds=100
only=fsdp2,zero1: expected one value, not several choices: use only=[fsdp2,zero1] | only=fsdp2,zero1
only=3: expected a list | only=3
only=[fsdp3]: no such name; did you mean fsdp2? | only=[fsdp3]
executor.nodes=0 | executor=slurm executor.nodes=0
executor.partition: no such name | executor.partition=gpu
retry='failed' | retry=[failed]
repeat: no such name; did you mean repeats? | repeat=2
seed=-1: expected a whole number of at least 0 | seed=-1
seed: Interpolation key | seed=${nothing}
~limits: only a workload can be left out | ~limits
seq_len: is a field of a workload; use suite.hf_defaults.seq_len=8 | suite.workload_from=x seq_len=8
suite.question: fixed by the suite | suite.question=x
suite.claims.table_1.value: claims are read-only | suite.claims.table_1.value=3
suite.workloads.gpt_5m.intermediate: no such name; did | suite.workloads.gpt_5m={intermediate:8}
suite.workloads.mine: missing fields: hidden_size (a | +suite.workloads.mine={num_hidden_layers:2}
suite.workloads.llama_7b.seq_len=4097: expected at most max_ | suite.workloads.llama_7b.seq_len=4097
suite.workloads.llama_7b.hidden_size=4096:  | suite.workloads.llama_7b.num_attention_heads=33
suite.workloads.llama_7b.dropout=nan | suite.workloads.llama_7b.dropout=nan
suite.workload_from: no/config.json: No such file | suite.workload_from=no/config.json
techniques=[]: lists no technique | techniques=[]
techniques.zero.host: several settings have this value; write {zero: { | techniques=[zero.host]
techniques.activation_checkpointing.ful: no such name; did y | techniques=[activation_checkpointing.ful]
techniques.fsdp2.cpu_offload: is a setting; write {fsdp2: {cpu_offload: tr | techniques=[fsdp2.cpu_offload]
techniques.bf16_states.2: this technique has no settings | techniques=[bf16_states.2]
techniques.fsdp2.shard_withing: no such name; did you mean | techniques=[{fsdp2:{shard_withing:2}}]
techniques: fsdp2 and zero both decide | techniques=[fsdp2,zero.2]
techniques: zero does not combine with compile | techniques=[zero,compile]
seed: nothing is run with from_results | from_results=nowhere seed=1
budget_min: goes with | budget_min=5
seed=-1: | --cfg job seed=-1
# profile
no/such.json: no trace can be read | no/such.json
model_FLOPS: no such name; did you mean model_FLOP? | TRACE model_FLOPS=1
the theoretical time needs both | TRACE model_FLOP=1e9
peak=h1000: expected a positive number | TRACE model_FLOP=1 peak=h1000
out=/proc/x: cannot write | STEPS out=/proc/x
TRACE: rank 0 is there twice | TRACE TRACE
communication=*: is no regular expression | STEPS communication=[a,*]
communication=((( | STEPS communication=BRACKETS
# compare
expected two results folders, A and B; got none | --json x
expected two results folders, A and B; got A B C | A B C
--fail-above -1: expected a share | A B --fail-above=-1
fail_above=5: expected a share | A B fail_above=5
fail: no such name; did you mean fail_above? | A B fail=1
nowhere: no such folder | nowhere nowhere
# fit advise cost
model | model=none.json gpus=2
config=none.toml | config=none.toml gpus=2
devices=0 | MODEL devices=0
gpus | MODEL GPUS devices=16
tokens_per_batch=4M | MODEL GPUS TP tokens_per_batch=4M global_batch_size=4
global_batch_size=3 | MODEL GPUS TP global_batch_size=3
layout=qp:8 | MODEL GPUS layout=qp:8
etp=2 | MODEL GPUS layout=tp:2,etp:2
layout=zero:4 | MODEL GPUS layout=zero:4
tp × pp × cp | MODEL GPUS layout=tp:3
program=jax | MODEL GPUS TP program=jax
tp × pp × cp | FILE gpus=3
# fit advise
out | questions=CUT
questions=none: No such file | questions=none out=x
questions=CUT: line 2 is not JSON | questions=CUT out=x
questions=LIST: line 2 is no question | questions=LIST out=x
# fit
model | gpus=2
devices | FILE
link: not used for bytes (harness.fit) | MODEL link=400gbit
seq_len=256 | MAMBA seq_len=256
device | MODEL device=0.1GB devices=2 TP
techniques.fsdp3 | MODEL techniques=[fsdp3]
devices=4 | MODEL devices=4 techniques=[mixed_precision]
techniques.tensor_parallel | MODEL devices=2 techniques=[tensor_parallel]
techniques: not used with layout= | MODEL devices=2 TP techniques=[fsdp2]
precision | MODEL techniques=[] precision=bf16
model={"hidden_size":8}: num_hidden_layers is missing | model={"hidden_size":8}
model: model_type | model={"model_type":"lama"}
config: not JSON | config={"a":
model: num_hidden_layers is -2; it must be a number of at least 1 | model={"num_hidden_layers":-2}
model={"hidden_size":8,"hidden_size":8}: hidden_size is given twice | model={"hidden_size":8,"hidden_size":8}
model_code=none:f: no module none | MODEL model_code=none:f
model_code: not used where tp | MODEL devices=2 TP model_code=suites.published.models:torchtune_llama
torch=new: expected a version | MODEL torch=new
imbalance=0.05: expected | MODEL devices=2 TP imbalance=0.05
imbalance=2: the model has no experts | MODEL devices=2 TP imbalance=2
imbalance=5: expected 1 to 4, where every token | MIXTRAL devices=2 TP imbalance=5
torch: not used by the account, which answers since a layout is asked about | MODEL devices=2 TP torch=2.4
oom=NOTHING | oom=NOTHING
seq_len: needs model= or config= | oom=NOTHING seq_len=4
# advise cost
gpus | MODEL
model_code: not used for | MODEL GPUS TP model_code=a:b
link=400GB/s | MODEL GPUS link=400GB/s
device=48GB | MODEL GPUS device=48GB
device=gpu_80gb | MODEL GPUS device=gpu_80gb
price | MODEL GPUS TP price=2 rate=2
techniques: not used for | MODEL GPUS techniques=[]
# advise
model | gpus=2
mine: needs the layout | MODEL GPUS mine=4.1s
mine=0tflops: expected a rate above 0 | MODEL GPUS TP mine=0tflops
mine=45s,data:2s,data:3s: data: given twice | MODEL GPUS TP mine=45s,data:2s,data:3s
mine=NOTHING | MODEL GPUS TP mine=NOTHING
serve=70000 | MODEL GPUS serve=70000
mine=4s: the page | MODEL GPUS TP serve=0 mine=4s
gpus | MODEL serve=0
# cost
tokens=5 | MODEL GPUS TP tokens=5
rate and prices | MODEL GPUS TP rate=1 prices=rented_2026_07
FOLDER/none | FOLDER/none
expected one | rate=2
price | FOLDER price=2 rate=2
rate=20/node | RESULTS rate=20/node
"""
"""Below the commands: what the line begins with, and the words, in which capitals stand for `places`."""


EVENTS = [
    {"ph": "X", "ts": 0, "dur": 1, "name": "cudaLaunchKernel", "cat": "cuda_runtime", "pid": 1, "tid": 1,
     "args": {"correlation": 1}},
    {"ph": "X", "ts": 1, "dur": 5, "name": "k", "cat": "kernel", "pid": 0, "tid": 7,
     "args": {"stream": 7, "device": 0, "correlation": 1}},
]  # fmt: skip


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
    (folder / "trace.json").write_text(json.dumps({"traceEvents": EVENTS}))
    (folder / "cut.jsonl").write_text('{"id": "a"}\n{"id":')
    (folder / "list.jsonl").write_text("\n[1, 2]\n")
    (folder / "mamba").mkdir()
    (folder / "mixtral").mkdir()
    (folder / "empty").mkdir()
    return {
        "LONG": "x" * 5000,
        "BRACKETS": "(" * 5000,
        "TRACE": str(folder / "trace.json"),
        "STEPS": str(ROOT / "tests/data/traces/communication_without_nccl.json"),
        "MODEL": f"model={config(folder)}",
        "MAMBA": f"model={config(folder / 'mamba', model_type='mamba')}",
        "MIXTRAL": f"model={config(folder / 'mixtral', model_type='mixtral')}",
        "FILE": f"config={folder / 'titan.toml'}",
        "NOTHING": str(folder / "nothing.txt"),
        "CUT": str(folder / "cut.jsonl"),
        "LIST": str(folder / "list.jsonl"),
        "FOLDER": str(folder / "empty"),
        "RESULTS": str(ROOT / "results/reference/cost"),
        "GPUS": "gpus=16",
        "TP": "layout=tp:2",
    }


@pytest.mark.parametrize(("command", "key", "words"), list(rows()))
def test_a_mistake_is_one_short_line_that_names_the_key(
    command, key, words, places, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    key, words = (
        re.sub(r"\b[A-Z]{2,}\b", lambda name: places.get(name[0], name[0]), one) for one in (key, words)
    )
    argv = {"harness": [], "memory": ["suite=memory"]}.get(command, [command])
    name = f"harness.{command}" if command in COMMANDS else "harness"
    assert main([*words.split(), *argv] if name == "harness" else [*argv, *words.split()]) == MISTAKE
    said = capsys.readouterr()
    assert said.err.startswith(f"{name}: {key}")
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
    assert [one["verdict"] for one in answers] == ["fits", "refused", "refused", "refused", "fits"]
    for one in answers:
        refused = one["verdict"] == "refused"
        assert len(one["reason"].splitlines()) == refused
        assert ("peak_allocated_GB" in one) != refused
        assert ("step_s" in one) == (command is advise and not refused)
