"""Framework's own files answered: each command starts a child, which calculates."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from own_texts import TITAN

from harness.commands.advise.command import main as advise
from harness.commands.cost.command import main as cost
from harness.commands.fit.command import main as fit
from harness.config.own_files.read import read_own_text

pytest.importorskip("transformers", reason="the extra `hf` brings it")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "llama3_8b.toml"
    path.write_text(TITAN)
    return f"config={path}"


def test_a_layout_of_a_file_fits_as_its_words_do_and_is_written(file, tmp_path, capsys):
    out = f"out={tmp_path / 'out'}"
    assert fit([file, "devices=16", "write=torchtitan", out]) == 0
    said = capsys.readouterr().out
    assert "as torchtitan trains" in said
    assert "Read llama3_8b.toml as torchtitan" in said
    toml = said[said.index("[model]") :]
    again = read_own_text(toml.partition("\nThis file")[0], "torchtitan", ".toml")
    largest = int(re.search(r"micro-batch (\d+) at most", said)[1])
    assert (again.tp, again.zero, again.recompute, again.micro_batch_size) == (2, 3, "full", largest)
    (model,) = (tmp_path / "out" / "own_files").glob("*.json")
    assert json.loads(model.read_text())["num_hidden_layers"] == 32
    words = ["layout=tp:2,zero:3", "program=torchtitan", "recompute=full", "seq_len=8192"]
    assert fit([f"model={model}", "devices=16", "micro_batch_size=2", *words, out]) == 0
    assert capsys.readouterr().out.splitlines()[0] == said.splitlines()[0]


def test_the_adviser_compares_the_files_layout_and_a_log_with_others(file, tmp_path, capsys):
    log = tmp_path / "train.log"
    line = "step: {:2d}  loss: 10.0  memory: 40.1GiB(50.1%)  tps: {:,}  tflops: 347.0  mfu: 35.1%\n"
    log.write_text("".join(line.format(n, tps) for n, tps in [(1, 100), (2, 500), (3, 512), (4, 524)]))
    words = [file, "gpus=16", f"mine={log}", "write=torchtitan", f"out={tmp_path / 'out'}"]
    assert advise(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("llama3_8b.toml: dp 8 × tp 2, ZeRO-3, full recompute, micro-batch 2 × 1: ")
    step_s = 2 * 8192 / 2 / 512  # a data-parallel rank's two sequences, on two devices
    assert f"train.log, torchtitan's: {step_s:.3g} s per step" in said
    assert "above the 90 % interval" in said
    assert "What would explain it, the likeliest first" in said
    assert "Nearest published: " in said
    assert "times its tokens/s." in said
    first = next(line for line in said.splitlines() if line.startswith("1. "))
    toml = said[said.index("[model]") :].partition("\nThis file")[0]
    again = read_own_text(toml, "torchtitan", ".toml")
    assert f"micro-batch {again.micro_batch_size} × {again.micro_batches()}" in first
    assert f"dp {again.dp_of()}" in first


def test_a_run_is_priced_before_it_is_run(file, tmp_path, capsys):
    out = f"out={tmp_path / 'out'}"
    assert cost([file, "gpus=16", "tokens=1e12", "price=2", out]) == 0
    said = capsys.readouterr().out
    assert advise([file, "gpus=16", out]) == 0
    own = capsys.readouterr().out
    rate = int(re.search(r"([\d,]+) tokens/s per GPU", own)[1].replace(",", ""))
    hours = int(re.search(r"([\d,]+) GPU-hours", said)[1].replace(",", ""))
    assert hours == pytest.approx(1e12 / rate / 3600, rel=1e-3)
    days = float(re.search(r"take ([\d.]+) days", said)[1])
    assert days == pytest.approx(hours / 16 / 24, rel=0.01)
    step_s, low_s, high_s = (
        float(one) for one in re.search(r": ([\d.]+) s per step \(90 %: ([\d.]+) … ([\d.]+)\)", own).groups()
    )
    low, high = (float(one) for one in re.search(r"\(90 %: ([\d.]+) … ([\d.]+)\)", said).groups())
    assert low / days == pytest.approx(low_s / step_s, rel=0.02)
    assert high / days == pytest.approx(high_s / step_s, rel=0.02)
    assert "your rate" in said
    assert cost([file, "gpus=16", "device=b200", "prices=nobody", out]) == 2
    assert capsys.readouterr().err.count("\n") == 1
