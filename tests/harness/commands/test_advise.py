"""`harness.advise`: what its words mean, and what it answers, against the suite's own readings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from scipy.stats import norm
from synthetic import made

from harness.commands.advise import command
from harness.commands.advise.explained import FAMILIES, likely_causes, of_mine, of_nearest
from harness.commands.advise.question import question_of
from harness.config.validation import ConfigError
from harness.records import Record

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "llama-8b.json"
    path.write_text(json.dumps(LLAMA))
    return f"model={path}"


@pytest.mark.parametrize(
    ("link", "rate_B_per_s", "network"),
    [
        ("400gbit", 50e9, "infiniband"),
        ("400Gbps", 50e9, "infiniband"),
        ("3.2tbit/node", 50e9, "infiniband"),
        ("3200gbit/node,efa", 50e9, "efa"),
        ("10gbit", 1.25e9, "infiniband"),
    ],
)
def test_links_are_rates_per_gpu_in_bits(model: str, link: str, rate_B_per_s: float, network: str):
    fields = question_of([model, "gpus=16", f"link={link}"]).workload
    assert (fields["network_B_per_s"], fields["network"]) == (pytest.approx(rate_B_per_s), network)


@pytest.mark.parametrize(("tokens", "sequences"), [("4M", 512), ("4194304", 512), ("512k", 64), ("1M", 128)])
def test_a_batch_in_tokens_is_one_in_sequences(model: str, tokens: str, sequences: int):
    question = question_of([model, "gpus=16", "seq_len=8192", f"tokens_per_batch={tokens}"])
    assert question.workload["global_batch_size"] == sequences


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "gpus: missing"),
        (["gpus=16", "link=400GB/s"], "link=400GB/s: did you mean 400gbit or 3200gbit?"),
        (["gpus=16", "link=fast"], "link=fast: expected a rate per GPU as 400gbit"),
        (["gpus=16", "link=400tbit"], "expected 0.8 to 1600"),
        (["gpus=16", "link=400gbit,tcp"], "expected infiniband or efa"),
        (["gpus=16", "device=48GB"], "device=48GB: seconds need a GPU's rates"),
        (["gpus=16", "tokens_per_batch=7", "seq_len=8192"], "no whole number of sequences"),
        (["gpus=16", "mine=4.1s"], "mine: needs the layout of your run"),
        (["gpus=16", "layout=tp:8", "mine=fast"], "mine=fast: expected the seconds of your step"),
        (["gpus=16", "layout=qp:8"], "layout=qp:8: no such name; .*tp"),
        (["gpus=16", "layout=dp:4,tp:8"], "dp × tp × pp × cp = 32, and devices=16"),
        (["gpus=16", "colour=red"], "colour: no such name"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(model: str, words: list[str], message: str):
    with pytest.raises(ConfigError, match=message) as refused:
        question_of([model, *words])
    assert "\n" not in str(refused.value)


def test_an_answer_names_layouts_intervals_memory_and_switches(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    words = [model, "gpus=8", "seq_len=8192", "tokens_per_batch=1M", "price=2", f"out={tmp_path / 'out'}"]
    assert command.main(words) == 0
    said = capsys.readouterr().out
    first = said.splitlines()[0]
    assert "ZeRO-1" in first
    assert "s per step (90 %:" in first
    for expected in (
        "TFLOP/s per GPU",
        "MFU",
        "At $2 per GPU-hour",
        "What each switch of the first is worth",
    ):
        assert expected in said
    assert max(map(len, said.splitlines())) <= 160
    assert command.main(words) == 0  # from its records
    assert capsys.readouterr().out == said


def test_ones_own_step_is_compared_with_the_prediction(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    words = [
        model,
        "gpus=16",
        "seq_len=8192",
        "layout=tp:4",
        "global_batch_size=64",
        f"out={tmp_path / 'out'}",
    ]
    assert command.main([*words, "mine=600s"]) == 0
    said = capsys.readouterr().out
    assert "above the 90 % interval" in said
    assert "What would explain it, the likeliest first" in said
    assert "a loader for which the step waits 100% longer" in said
    assert ", which does not suffice" in said
    assert "Nearest published: " in said
    assert "Yours in TFLOP/s per GPU is" in said


def test_the_likeliest_cause_fits_and_is_common_before_one_looks():
    """Sizes of a family share its prior; the density is that of a normal logarithm, by scipy."""
    causes = {
        ("network", "twice"): 2.0,
        ("network", "four times"): 4.0,
        ("power", "half"): 3.0,
        ("loader", "waits"): 3.9,
    }
    found = likely_causes(causes, 4.0, 0.1)
    assert [one.title for one in found] == ["four times", "waits", "half"]
    for one in found:
        share = 2 if one.family == "network" else 1
        density = norm.logpdf(math.log(4.0), math.log(one.step_s), 0.1) + math.log(
            0.1 * math.sqrt(2 * math.pi)
        )
        assert one.log_likelihood == pytest.approx(math.log(FAMILIES[one.family].prior / share) + density)
    assert likely_causes(causes, 1000.0, 0.01)[0].title == "four times"  # nothing is near


def made_record(*causes: tuple[str, str, float]) -> Record:
    figures = {
        (f"cause/{family}", title): ("s", "calculated", (seconds,)) for family, title, seconds in causes
    }
    nearest_ = {"published": 2.0, "predicted": 2.5, "flop_per_gpu": 1e15}
    figures |= {
        (f"nearest/{name}", "X on 8 GPUs"): ("s", "calculated", (one,)) for name, one in nearest_.items()
    }
    return made(figures=figures)


PREDICTED = {"step_time": 2.0, "step_time/low": 1.8, "step_time/high": 2.2, "model_flop_rate": 400e12}


def test_a_slower_step_is_explained_by_what_slows_and_a_faster_one_by_what_does_not():
    record = made_record(
        ("network", "slow", 4.0), ("batch", "half", 1.0), ("power", "less", 2.6), ("loader", "all", 90.0)
    )
    slower = list(of_mine(record, 4.0, PREDICTED))
    assert slower[0].startswith("Yours: 4 s, 2.00 times the prediction, above the 90 % interval; 200 TFLOP/s")
    assert [line.split(":")[0].strip() for line in slower[2:4]] == ["slow", "less"]
    assert ("suffice" in slower[2], "suffice" in slower[3]) == (False, True)
    assert slower[4].startswith("  all: 90 s, which is more than yours")
    faster = list(of_mine(record, 1.0, PREDICTED))
    assert [line.split(":")[0].strip() for line in faster[2:-1]] == ["half"]
    assert faster[-1].strip().startswith("Or another count of FLOP")
    (inside,) = of_mine(record, 2.1, PREDICTED)
    assert "inside the 90 % interval" in inside
    said = " ".join(of_nearest(record))
    assert said == "Nearest published: X on 8 GPUs: 2 s, 500 TFLOP/s per GPU; predicted for it 2.5 s, 400."


@pytest.mark.parametrize(("device", "message"), [("mi300x", "seconds are not known"), ("t4", "bf16 matmuls")])
def test_a_device_that_was_not_compared_is_not_known(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str, message: str
):
    pytest.importorskip("transformers", reason="the extra `hf` brings it")
    assert command.main([model, "gpus=16", f"device={device}", f"out={tmp_path / 'out'}"]) == 2
    assert message in capsys.readouterr().err
