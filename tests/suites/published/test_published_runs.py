"""Public runs: each line has a source, units and an outcome; scores by hand; the suite on a few runs."""

import json
import re

import pytest
from msgspec.structs import replace

from suites.published.runs import (
    KINDS,
    Outcome,
    PublishedRun,
    kind_of,
    main,
    of_bytes,
    of_seconds,
    published_runs,
    question,
)

RUN = PublishedRun(
    id="a", kind="finetune", source="a page", page="https://example.org", framework="TRL", model="Llama 2 7B",
    device="A100 80 GB", gpus=2, method="lora", seq_len=1000, micro_batch_size=2,
    gradient_accumulation_steps=4,
    outcome=Outcome(runs=True, peak_GB=20.0, peak_kind="allocated", samples_s=8.0),
)  # fmt: skip


def test_every_run_has_an_id_of_its_own_a_kind_and_a_place():
    runs = published_runs()
    assert len({run.id for run in runs}) == len(runs) >= 778
    assert {kind_of(run) for run in runs} == set(KINDS)
    assert all(run.page.startswith("https://") or (not run.page and run.place) for run in runs)
    assert all("outcome" not in question(run) for run in runs)


NAMED = [
    ({"source": ""}, "source"),
    ({"page": "", "place": ""}, "page"),
    ({"outcome": {}}, "outcome"),
    ({"outcome": {"runs": True, "peak_GB": 20.0}}, "peak_kind"),
    ({"outcome": {"peak_GB": -1.0, "peak_kind": "reserved"}}, "peak_GB"),
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
