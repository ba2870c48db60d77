"""What fit, advise and cost refuse: exit status 2 and one short line that begins with the key."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from own_texts import TITAN
from small_config import config

from harness.commands.entry import MISTAKE
from harness.commands.main import COMMANDS

LONGEST = 300

TABLE = """
# fit advise cost
model | model=none.json gpus=2
model | model=nobody/knows-7b gpus=2
config=none.toml | config=none.toml gpus=2
colour | MODEL GPUS colour=red
device=H100 | MODEL GPUS device=H100
device=0GB | MODEL GPUS device=0GB
devices=0 | MODEL devices=0
gpus | MODEL GPUS devices=16
seq_len= | MODEL GPUS seq_len=
gpus_per_node=0 | MODEL GPUS TP gpus_per_node=0
tokens_per_batch=7 | MODEL GPUS TP tokens_per_batch=7
tokens_per_batch=4M | MODEL GPUS TP tokens_per_batch=4M global_batch_size=4
global_batch_size=3 | MODEL GPUS TP global_batch_size=3
layout=qp:8 | MODEL GPUS layout=qp:8
layout=dp:4 | MODEL GPUS layout=dp:4,tp:8
layout=tp:0 | MODEL GPUS layout=tp:0
etp=2 | MODEL GPUS layout=tp:2,etp:2
layout=zero:4 | MODEL GPUS layout=zero:4
tp × pp × cp | MODEL GPUS layout=tp:3
program=jax | MODEL GPUS TP program=jax
precision=fp4 | MODEL GPUS TP precision=fp4
precision fp32 | MODEL GPUS TP precision=fp32
show=some | MODEL GPUS TP show=some
tp × pp × cp | FILE gpus=3
# fit
recompute_modules: Megatron-LM's | MODEL devices=2 recompute_modules=[mlp]
write=torchtitan | MODEL GPUS TP write=torchtitan
model | model
model | gpus=2
devices | FILE
link: not used for bytes (harness.fit) | MODEL link=400gbit
mine: not used for bytes | MODEL mine=4s
rate: not used for bytes | MODEL rate=2
tokens: not used for bytes | MODEL tokens=1e12
what_ifs=maybe | MODEL what_ifs=maybe
write=word | MODEL write=word
seq_len=512 | MODEL seq_len=512
seq_len=256 | MAMBA seq_len=256
device | MODEL device=0.1GB devices=2 TP
techniques.fsdp3 | MODEL techniques=[fsdp3]
devices=4 | MODEL devices=4 techniques=[mixed_precision]
techniques.tensor_parallel | MODEL devices=2 techniques=[tensor_parallel]
techniques.pipeline | MODEL techniques=[pipeline]
techniques: not used with layout= | MODEL devices=2 TP techniques=[fsdp2]
techniques: not used with a file | FILE devices=16 techniques=[fsdp2]
precision | MODEL techniques=[] precision=bf16
recompute | MODEL techniques=[] recompute=full
oom=NOTHING | oom=NOTHING
layout: not used for an out-of-memory message | oom=NOTHING TP
write: not used for an out-of-memory message | oom=NOTHING write=torchtitan
seq_len: needs model= or config= | oom=NOTHING seq_len=4
# advise cost
gpus | MODEL
link=400GB/s | MODEL GPUS link=400GB/s
link=fast | MODEL GPUS link=fast
link=400gbit,tcp | MODEL GPUS link=400gbit,tcp
device=48GB | MODEL GPUS device=48GB
device=t4 | MODEL GPUS device=t4
device=mi300x | MODEL GPUS device=mi300x
offload=optimizer | MODEL GPUS TP offload=optimizer
rate=free | MODEL GPUS TP rate=free
price=0 | MODEL GPUS TP price=0
rate=1800 | MODEL GPUS TP rate=1800
price | MODEL GPUS TP price=2 rate=2
what_ifs: not used for | MODEL GPUS what_ifs=all
oom: not used for | MODEL GPUS oom=NOTHING
techniques: not used for | MODEL GPUS techniques=[]
recompute_modules: not used for | MODEL GPUS recompute_modules=[mlp]
# advise
model | gpus=2
mine: needs the layout | MODEL GPUS mine=4.1s
mine=fast | MODEL GPUS TP mine=fast
tokens: not used for seconds (harness.advise) | MODEL GPUS tokens=1e12
prices: not used for seconds | MODEL GPUS prices=any
write=word | MODEL GPUS write=word
serve=yes | MODEL GPUS serve=yes
serve=70000 | MODEL GPUS serve=70000
mine=4s: the page | MODEL GPUS TP serve=0 mine=4s
rate=2: the page | MODEL GPUS TP serve=0 rate=2
colour | MODEL GPUS serve=0 colour=red
device=t4 | MODEL GPUS serve=0 device=t4
gpus | MODEL serve=0
# cost
mine: not used for the price of a run (harness.cost) | MODEL GPUS mine=4s
write: not used for the price of a run | MODEL GPUS write=torchtitan
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


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield each row of the table for each of its commands."""
    commands: list[str] = []
    for line in TABLE.strip().splitlines():
        if line.startswith("# "):
            commands = line[2:].split()
            continue
        key, _, words = line.partition(" | ")
        yield from ((command, key, words) for command in commands)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what the table's capitals stand for."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "titan.toml").write_text(TITAN)
    (folder / "nothing.txt").write_text("nothing")
    (folder / "mamba").mkdir()
    (folder / "empty").mkdir()
    results = Path(__file__).parents[3] / "results/reference/cost"
    return {
        "MODEL": f"model={config(folder)}",
        "MAMBA": f"model={config(folder / 'mamba', model_type='mamba')}",
        "FILE": f"config={folder / 'titan.toml'}",
        "NOTHING": str(folder / "nothing.txt"),
        "FOLDER": str(folder / "empty"),
        "RESULTS": str(results),
        "GPUS": "gpus=16",
        "TP": "layout=tp:2",
    }


@pytest.mark.parametrize(("command", "key", "words"), list(rows()))
def test_a_mistake_is_one_short_line_that_names_the_key(
    command: str,
    key: str,
    words: str,
    places: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
