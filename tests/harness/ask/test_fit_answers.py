"""harness.fit's numbers: those printed, those in answer.json, and those of the dry run and of the account."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

import pytest
from own_texts import TITAN
from small_config import config

from harness.ask import fit
from harness.ask.recipe import what_ifs_of, with_techniques
from harness.ask.words import FIT, question_from, words_of
from harness.commands.entry import DEPENDS, DONE, NO
from harness.config.code_fingerprint import ROOT
from harness.frameworks.read import read_own_text
from harness.question import DryRunRequest
from harness.records import Unavailable
from suites.training import dry_run_engine
from suites.training.dry_run.largest_batch import fit_of, outside_allocator_B, search

pytest.importorskip("transformers", reason="the extra `hf` brings it")

LARGER = {"hidden_size": 1024, "intermediate_size": 2752, "vocab_size": 32000, "num_attention_heads": 8}
LARGER |= {"num_key_value_heads": 8}
PARAMETERS = 2 * 32000 * 1024 + 2 * (4 * 1024**2 + 3 * 1024 * 2752 + 2 * 1024) + 1024


class Fitted(NamedTuple):
    status: int
    lines: list[str]
    disk: dict[str, Any]


def fitted(folder, words):
    """Return what the command prints, and its answer.json."""
    text = StringIO()
    with redirect_stdout(text):
        status = fit.main([*words.split(), f"out={folder / 'out'}"])
    latest = max((folder / "out").glob("*/answer.json"), key=lambda file: file.stat().st_mtime_ns)
    return Fitted(status, text.getvalue().splitlines(), json.loads(latest.read_text()))


def asked(words):
    """Return a question with its recipe as techniques, as the engine gets it."""
    return with_techniques(question_from(words_of(words.split(), FIT)))[0]


def answered(question, **request):
    """Return the dry run's last answer, from this process."""
    return list(dry_run_engine.answers(DryRunRequest(question=question, **request)))[-1]


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """Return the words of a step that fits with room for a second sequence, and the command's answer."""
    folder = tmp_path_factory.mktemp("dry")
    words = f"model={config(folder, **LARGER)} device=3GB seq_len=128 micro_batch_size=2"
    return words, fitted(folder, f"{words} show=all")


def test_what_a_dry_run_prints_is_what_it_keeps(dry):
    _, (status, lines, disk) = dry
    memory = disk["memory"]
    assert (status, disk["verdict"], disk["reason"], disk["engine"]) == (DONE, "fits", "", "dry run")
    allocated, low, high = (disk[f"peak_allocated{end}_GB"] for end in ("", "_low", "_high"))
    room = memory["room_B"] / 1e9
    assert lines[0].startswith(
        f"fits: {allocated:.1f} of {room:.1f} GB per GPU at micro-batch 2 (90 %: {low:.1f} … {high:.1f})"
    )
    said = "\n".join(lines)
    for part in (f"Micro-batch {memory['largest_micro_batch']:,} at most", f"{PARAMETERS / 1e6:.3g} M param"):
        assert part in said
    (row,) = (line for line in lines if line.startswith("peak that torch's allocator counts"))
    peaks = {peak["micro_batch_size"]: peak for peak in memory["peaks"]}
    shown = [2, memory["largest_micro_batch"], memory["largest_micro_batch"] + 1]
    assert row.split()[5:] == [f"{peaks[size]['allocated_B'] / 1e9:.1f}" for size in shown]
    assert [peaks[size]["fits"] for size in shown] == [True, True, False]
    for change in (one for one in disk["changes"] if one["peak_B"] is not None):
        (row,) = (line for line in lines if line.startswith(f"  {change['title']}  "))
        assert f" {change['peak_B'] / 1e9:.1f} " in row


def test_a_dry_run_is_that_of_the_suite(dry):
    words, (_, _, disk) = dry
    memory = disk["memory"]
    runs = dry_run_engine.StepRuns(asked(words))
    largest, tried = search(runs.step, runs.target, runs.at)
    assert memory["largest_micro_batch"] == largest > 2
    assert disk["parameters"] == PARAMETERS
    assert memory["usable_B"] == 3e9
    assert memory["room_B"] == 3e9 - sum(outside_allocator_B(runs.step).values())
    sizes = sorted({runs.requested, *tried})
    assert len(memory["peaks"]) == len(sizes)
    for peak, size in zip(memory["peaks"], sizes, strict=True):
        run = runs.at(size)
        fit = fit_of(runs.step, run, runs.target)
        own = (size, fit.fits, run.allocated_B, run.reserved_B, fit.retries)
        names = ("micro_batch_size", "fits", "allocated_B", "reserved_B", "retries")
        assert tuple(peak[name] for name in names) == own
        assert sum(peak["by_kind_B"].values()) == run.peak_B <= run.allocated_B
    states_B = memory["peaks"][0]["by_kind_B"]["optimizer_states"]
    assert states_B == pytest.approx(8 * PARAMETERS, rel=0.01)  # two states of AdamW in 4 bytes


def test_what_ifs_predict_what_their_own_question_finds(tmp_path):
    """Hidden size and sequence length are equal, so that one sequence's tensors look like weights."""
    question = asked(f"model={config(tmp_path)} seq_len=64 device=1.3GB devices=2")
    changes = [one for one in what_ifs_of(question, False) if one.question is not None][:2]
    answer = answered(question, changes=tuple(changes))
    assert len(changes) == len(answer.changes) == 2
    for change, found in zip(changes, answer.changes, strict=True):
        own = answered(change.question).memory
        assert found.title == change.title
        assert found.largest_micro_batch == own.largest_micro_batch
        assert found.peak_B == own.peaks[0].allocated_B


@pytest.mark.parametrize(
    ("changes", "device"),
    [({"model_type": "bloom", "n_layer": 2, "n_head": 4}, "h100_80gb"), ({}, "v100_32gb")],
    ids=["a model without SDPA", "a device without fused attention in bf16"],
)
def test_what_is_only_assumed_is_left_out_where_it_cannot_be(tmp_path, changes, device):
    model = f"model={config(tmp_path, **changes)} seq_len=64 device={device}"
    answer = answered(asked(model), extent="asked")
    assert answer.without == ("attention",)
    assert "goes without" in " ".join(answer.notes)
    with pytest.raises(Unavailable, match="attention"):
        answered(asked(f"{model} techniques=[mixed_precision,attention]"), extent="asked")


def test_without_a_recipe_several_devices_share_the_model(tmp_path):
    model = f"model={config(tmp_path)}"
    assert dict(asked(model).techniques).keys() == {"mixed_precision", "attention"}
    assert dict(asked(f"{model} devices=2").techniques).keys() == {"fsdp2", "mixed_precision", "attention"}


LLAMA = f"model={ROOT}/tests/data/configs/llama-3.1-8b.json"


@pytest.mark.parametrize(
    ("device", "status", "verdict"),
    [("80GB", DONE, "fits"), ("20GB", DEPENDS, "depends"), ("15GB", NO, "does not fit")],
)
def test_what_an_account_prints_is_what_it_keeps(tmp_path, device, status, verdict):
    words = f"{LLAMA} devices=16 layout=tp:4,pp:2 seq_len=4096 global_batch_size=16"
    found = fitted(tmp_path, f"{words} device={device} what_ifs=false")
    disk, memory = found.disk, found.disk["memory"]
    assert (found.status, disk["verdict"], disk["engine"]) == (status, verdict, "account")
    reserved, low, high = (disk[f"peak_reserved{end}_GB"] for end in ("", "_low", "_high"))
    room = memory["room_B"] / 1e9
    assert found.lines[0] == (
        f"{verdict}: {reserved:.1f} of {room:.1f} GB per GPU (90 %: {low:.1f} … {high:.1f})"
    )
    ends = {"fits": (True, True), "depends": (True, False), "does not fit": (False, False)}
    assert (low <= room, high <= room) == ends[verdict]
    assert disk["layouts"][0]["parts"] | {"dp": 2, "tp": 4, "pp": 2} == disk["layouts"][0]["parts"]
    assert sum(memory["parts_B"].values()) == pytest.approx(memory["allocated_B"][1])
    assert memory["room_B"] == pytest.approx(memory["usable_B"] - sum(memory["outside_B"].values()))


def test_a_search_lists_layouts_that_each_fit_when_asked(tmp_path):
    words = f"{LLAMA} devices=16 seq_len=4096 device=a100_40gb"
    found = fitted(tmp_path, f"{words} layout=search what_ifs=false")
    disk = found.disk
    assert found.status == DONE
    assert found.lines[0].startswith(f"{disk['layouts_that_fit']} of {disk['layouts_tried']} layouts fit")
    assert disk["layouts_that_fit"] >= len(disk["layouts"]) > 1
    layout = disk["layouts"][0]
    names = ("tp", "pp", "cp", "ep", "zero", "virtual_stages")
    named = ",".join(f"{name}:{layout['parts'][name]}" for name in names)
    recompute = ("none", "selective", "full")[layout["parts"]["recompute"]]
    own = fitted(tmp_path, f"{words} layout={named} recompute={recompute}").disk
    assert own["memory"]["largest_micro_batch"] == layout["largest_micro_batch"]
    none = fitted(tmp_path, f"{LLAMA} devices=1 seq_len=100000 device=a100_40gb layout=search")
    assert (none.status, none.disk["verdict"], none.disk["layouts"]) == (NO, "does not fit", [])


def test_a_layout_of_a_file_fits_as_its_words_do_and_is_written_at_its_largest(tmp_path):
    (tmp_path / "titan.toml").write_text(TITAN)
    found = fitted(tmp_path, f"config={tmp_path / 'titan.toml'} devices=16 write=torchtitan")
    said = "\n".join(found.lines)
    again = read_own_text(said[said.index("[model]") :].partition("\nThis file")[0], "torchtitan", ".toml")
    assert (again.tp, again.zero, again.recompute) == (2, 3, "full")
    assert again.micro_batch_size == found.disk["memory"]["largest_micro_batch"]
    words = "layout=tp:2,zero:3 program=torchtitan recompute=full seq_len=8192 micro_batch_size=2"
    words += " expandable_segments=true"  # as torchtitan's run_train.sh has them
    assert fitted(tmp_path, f"{LLAMA} devices=16 {words}").lines[0] == found.lines[0]


OOM = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total "
    "capacity of 79.20 GiB of which 0.10 GiB is free. Of the allocated memory 70.00 GiB is allocated by "
    "PyTorch, and 1.25 GiB is reserved by PyTorch but unallocated."
)


def test_an_oom_message_is_explained(tmp_path, capsys):
    """20 MiB are the logits of 3 × 128 tokens over 4,000 words, in 12 bytes."""
    path = tmp_path / "error.txt"
    path.write_text(OOM)
    words = f"oom={path} model={config(tmp_path)} seq_len=128 micro_batch_size=3 devices=2"
    assert fit.main(words.split()) == DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "384 tokens × 4,000" in said
    assert fit.main([f"oom={path}"]) == DONE
    assert "384 tokens" not in capsys.readouterr().out


def test_a_file_goes_to_the_first_line_through_few_of_ours(tmp_path):
    """Counted in processes of their own, imports apart: what someone who follows the question would open."""
    (tmp_path / "titan.toml").write_text(TITAN.replace("tensor_parallel_degree = 2", ""))
    words = [f"config={tmp_path / 'titan.toml'}", "devices=8"]
    script = ROOT / "tests/benchmarks/files_on_the_way.py"
    said = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True).stdout
    parent, child = (int(count) for count in re.findall(r"(\d+) files in", said))
    assert 10 < parent <= 30
    assert 10 < child <= 45
