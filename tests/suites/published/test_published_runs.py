"""Public runs: each line has a source, units and an outcome; scores by hand; the suite on a few runs."""

import json
import re
from math import log
from statistics import NormalDist

import pytest
from msgspec.structs import replace

from harness.ask.fit import main as fit
from suites.published import suite
from suites.published.runs import KINDS, group_of, kind_of, main, of_bytes, of_seconds, tokens_per_s
from suites.training.step_time.published.rows import Outcome, PublishedRun, published_runs, question

RUN = PublishedRun(
    id="a", kind="finetune", source="a page", page="https://example.org", framework="TRL", model="Llama 2 7B",
    device="A100 80 GB", gpus=2, method="lora", seq_len=1000, micro_batch_size=2,
    gradient_accumulation_steps=4,
    outcome=Outcome(runs=True, peak_GB=20.0, peak_kind="allocated", samples_s=8.0),
)  # fmt: skip

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
"""


def test_every_run_has_an_id_of_its_own_a_kind_and_a_place():
    runs = published_runs()
    assert len({run.id for run in runs}) == len(runs) >= 778
    assert {kind_of(run) for run in runs} == set(KINDS)
    assert all(run.page.startswith("https://") or (not run.page and run.place) for run in runs)


NAMED = [
    ({"source": ""}, "source"),
    ({"outcome": {}}, "outcome"),
    ({"outcome": {"runs": True, "peak_GB": 20.0}}, "peak_kind"),
    ({"seq_length": 4096}, "seq_length"),
    ({"gpus": 0}, "gpus"),
]


def test_a_row_without_source_unit_or_outcome_is_refused_with_its_line(tmp_path):
    file, row = tmp_path / "runs.jsonl", question(RUN) | {"outcome": {"runs": True}}
    for change, named in NAMED:
        file.write_text(json.dumps(row) + "\n" + json.dumps(row | change) + "\n")
        with pytest.raises(ValueError, match=rf"line 2: .*{named}"):
            published_runs(file)


def test_a_step_is_an_update_of_all_ranks_and_of_all_micro_batches():
    assert RUN.sequences == 2 * 4 * 2
    assert RUN.step_s == 2 * 4 * 2 / 8.0
    pretraining = PublishedRun(
        id="b", kind="pretrain", source="a page", page="https://example.org", framework="Megatron-LM",
        model="GPT", device="H100", gpus=8, global_batch_size=64, seq_len=4096,
        outcome=Outcome(tokens_s_per_gpu=8192.0),
    )  # fmt: skip
    assert pretraining.step_s == 64 * 4096 / (8192 * 8)


SIZES = {"allocated": (22, 21, 23), "reserved": (26, 25, 27)}
PEAKS = {
    f"peak_{kind}{end}_GB": size
    for kind, sizes in SIZES.items()
    for end, size in zip(("", "_low", "_high"), sizes, strict=True)
}


def test_scores_of_bytes_are_those_by_hand():
    fits = of_bytes(RUN, {"verdict": "fits", **PEAKS})
    assert fits[:4] == (False, False, None, False)
    assert not fits.inside
    assert fits.error == pytest.approx(0.1)
    assert fits.half_width == pytest.approx(1 / 22)
    assert fits.level == pytest.approx(2 * NormalDist().cdf(1.6449 * log(1.1) / log(22 / 21)) - 1, abs=1e-3)
    failed = replace(RUN, outcome=Outcome(runs=False))
    assert of_bytes(failed, {"verdict": "fits", **PEAKS})[:4] == (False, True, False, False)
    assert of_bytes(failed, {"verdict": "depends", **PEAKS})[:4] == (False, None, True, True)
    assert of_bytes(RUN, {"verdict": "refused"})[:4] == (True, None, None, None)
    assert of_bytes(RUN, {"verdict": "fits"}).refused  # a peak was published, none is answered
    for kind, error in (("reserved", 0.3), ("nvidia-smi", 0.3), ("unknown", 0.1)):  # with the nearer
        run = replace(RUN, outcome=Outcome(peak_GB=20.0, peak_kind=kind))
        assert of_bytes(run, {"verdict": "fits", **PEAKS}).error == pytest.approx(error)


def test_scores_of_seconds_are_those_by_hand():
    score = of_seconds(RUN, {"verdict": "fits", "step_s": 1.0, "step_low_s": 0.5, "step_high_s": 2.5})
    assert (score.error, score.inside, score.half_width) == (-0.5, True, 1.0)
    assert of_seconds(RUN, {"verdict": "fits"}).refused
    assert not of_seconds(replace(RUN, outcome=Outcome(runs=True)), {"verdict": "fits"}).refused


def test_the_command_prints_the_figures_by_kind(tmp_path, capsys):
    """Every run that has a peak is answered with 1.1 times that."""
    main([f"questions={tmp_path / 'questions'}"])
    asked = [json.loads(line) for line in (tmp_path / "questions").read_text().splitlines()]
    runs = {run.id: run for run in published_runs()}
    assert [one["id"] for one in asked] == list(runs)
    with (tmp_path / "answers").open("w") as file:
        for name, run in runs.items():
            size = 1.1 * (run.outcome.peak_GB or 1)
            ends = {"": size, "_low": size / 1.2, "_high": size * 1.2}
            peaks = {f"peak_{kind}{end}_GB": one for kind in SIZES for end, one in ends.items()}
            file.write(json.dumps({"id": name, "verdict": "fits", **peaks}) + "\n")
    main([f"bytes={tmp_path / 'answers'}"])
    *_, every = capsys.readouterr().out.splitlines()
    failed = sum(run.outcome.runs is False for run in runs.values())
    told = sum(run.outcome.runs is not None for run in runs.values())
    shares = (0, failed / told, 0, 0, 0.1, 0.1, 1, (1.2 - 1 / 1.2) / 2)
    title, count, *texts = re.split("  +", every)
    assert (title, count) == ("All", str(len(runs)))
    assert [float(text.rstrip(" %")) / 100 for text in texts] == pytest.approx(shares, abs=5e-4)


def test_a_run_is_asked_by_the_file_that_its_publisher_committed(tmp_path):
    """The rows that a folder of repositories answers, with the run's device and length as words."""
    run = next(run for run in published_runs() if run.file.endswith("llama3_8b.toml"))
    repository, _, path = run.file.partition(" ")
    file = tmp_path / repository / path
    file.parent.mkdir(parents=True)
    file.write_text(TITAN)
    asked, answered = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    main([f"files={tmp_path}", f"questions={asked}"])
    rows = [json.loads(line) for line in asked.read_text().splitlines()]
    assert run.id in [row["id"] for row in rows]
    assert {row["config"] for row in rows} == {str(file)}
    asked.write_text(json.dumps({**rows[0], "seq_len": 0}) + "\n")
    assert fit([f"questions={asked}", f"out={answered}"]) == 0
    (answer,) = map(json.loads, answered.read_text().splitlines())
    assert answer["verdict"] == "refused"
    assert "seq_len" in answer["reason"]


def test_answers_become_readings_by_the_id_of_their_run(monkeypatch):
    """Answers of 1.5 times what was published, of one run a refusal: shares and errors by hand."""
    runs = [replace(RUN, id=id) for id in "ab"]
    said = {"verdict": "fits", "engine": "dry run", "turns": [{"kind": "key", "name": "liger"}],
            **{f"peak_{kind}{end}_GB": 30.0 for kind in SIZES for end in ("", "_low", "_high")}}  # fmt: skip
    refused = {"verdict": "refused", "reason": "no such device"}
    monkeypatch.setattr(suite, "answers_of", lambda rows, seconds: [refused if seconds else said, refused])
    found = {(one.metric, one.method): one.value for one in suite.sample(tuple(runs))}
    assert found["bytes/error", "a"] == pytest.approx(0.5)
    assert found["bytes/published", "a"] == 20e9
    assert found["bytes/turned_by", "a key: liger"] == 1
    assert found["bytes/refused_as", "b no such device"] == 1
    assert (found["bytes/share_refused", ""], found["bytes/median_error", ""]) == (0.5, pytest.approx(0.5))
    assert found["seconds/share_refused", ""] == 1


def test_a_run_of_a_group_has_the_tokens_per_second_to_expect(monkeypatch):
    """One that failed has none; TFLOP/s stand in for tokens/s, alike but for a factor within a group."""
    answer = {"verdict": "fits", "layouts": [{"tokens_per_s_per_device": 500.0, "chance_to_run": 0.8}]}
    outcome = replace(RUN.outcome, runs=True, step_s=2.0, tokens_s_per_gpu=None, samples_s=None)
    run = replace(RUN, kind="pretrain", gpus=8, seq_len=1000, global_batch_size=64, outcome=outcome)
    assert tokens_per_s(run, answer) == (64 * 1000 / 2.0 / 8, pytest.approx(400))
    assert tokens_per_s(replace(run, outcome=replace(outcome, runs=False)), answer)[0] == 0
    rate = replace(run, parameters_B=8.0, outcome=replace(outcome, step_s=None, tflops_per_gpu=480.0))
    assert tokens_per_s(rate, answer)[0] == pytest.approx(10_000)
    assert group_of(run) == group_of(replace(run, tp=8))
    assert "" == group_of(RUN) != group_of(run) != group_of(replace(run, gpus=16))
    monkeypatch.setattr(suite, "answers_of", lambda rows, seconds: [answer for _ in rows])
    failed = replace(run, id="f", outcome=replace(outcome, runs=False, step_s=None))
    found = {(one.metric, one.method): one.value for one in suite.sample((run, failed))}
    assert (found["choice/published", "f"], found["choice/expected", run.id]) == (0, pytest.approx(400))
