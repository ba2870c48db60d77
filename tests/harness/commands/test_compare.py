"""Two results folders are compared: what changed beyond the noise, and what fails; also by simulation."""

from __future__ import annotations

import gzip
import json
import math
import random
import sys
from pathlib import Path

import pytest

from harness.commands.compare import main
from harness.commands.compare.change import FALSE_FAILURES, holm, significant, welch
from harness.commands.compare.comparison import ResultsFolder, compare_folders, read_folder
from harness.config.code_fingerprint import ROOT
from harness.records import Cell, Limits, Measurement, Record, digest
from harness.statistics import ratio
from harness.sweep.environment import Environment, Gpu
from harness.sweep.plan import Plan, write_plan
from harness.sweep.store import Store

HOST = Environment(
    system="Linux 6 x86_64", cpu="Processor A", cores=8, memory_B=64 << 30, python="3.11.7",
    versions={"torch": "2.13.0"}, gpus=(), driver="", commit="a" * 40, dirty=False,
)  # fmt: skip
OTHER_HOST = HOST._replace(cpu="Processor B", gpus=(Gpu("GPU X", 80 << 30),), driver="570.1")


def record(variant, repeat, samples, workload="small", suite="invented", status="ok", environment=HOST, **of):
    """Return a record of samples by (metric, unit, origin), of one process."""
    config = {"workload": {"seq_len": 128} | of, "settings": {}}
    name = digest([suite, workload, variant, repeat, config, environment.host])
    measurements = tuple(Measurement(m, u, o, "", tuple(s)) for (m, u, o), s in samples.items())
    cell = Cell(name, suite, workload, variant, variant, repeat, repeat, config)
    return Record(cell, status, "", measurements, environment=environment.digest, limits=Limits(60.0))


def write(folder, records, *environments):
    """Write a results folder through the store."""
    records = list(records)
    with Store(folder) as store:
        for one in records:
            store.append(one)
        for environment in environments or (HOST,):
            store.write_environment(environment)
    write_plan(folder, Plan("invented", tuple(one.cell.id for one in records)))
    return folder


TIME = ("time", "s", "measured")
RATE = ("rate", "token/s", "measured")
BYTES = ("peak_memory", "B", "measured")


def times(seed, factors, repeats=5, spread=0.01, **fields):
    """Return records of `time`: each variant takes its factor of 10 ms, with noise of process and round."""
    draw = random.Random(seed)
    return [
        record(variant, repeat, {TIME: [process * draw.gauss(1, 0.005) for _ in range(6)]}, **fields)
        for repeat in range(repeats)
        for variant, factor in factors.items()
        for process in [0.01 * factor * math.exp(draw.gauss(0, spread))]
    ]


BOTH = {"baseline": 1.0, "fused": 0.5}


def run(capsys, *words):
    status = main([str(word) for word in words])
    return status, *capsys.readouterr()


def compared(tmp_path, a, b, above=0.05):
    folders = write(tmp_path / "a", a), write(tmp_path / "b", b)
    return compare_folders(*map(read_folder, folders), above)


def failed(found):
    return [
        (one.optimization, one.metric) for one, is_failed in zip(found.metrics, found.failed, strict=True)
        if is_failed
    ]  # fmt: skip


def test_a_run_compared_with_itself_has_no_change(capsys, tmp_path):
    folder = ROOT / "results/reference/overlap"
    status, out, _ = run(capsys, folder, folder, "--fail-above", 0, "--json", tmp_path / "c.json")
    assert status == 0
    assert "| Workload |" not in out
    data = json.loads((tmp_path / "c.json").read_text())
    assert {one["verdict"] for one in data["metrics"]} == {"same"}
    assert data["cells"] == data["cells_with_same_identity"] > 1
    assert not data["conditions"]


def test_a_slower_variant_fails_and_is_named(capsys, tmp_path):
    a = write(tmp_path / "a", times(1, BOTH))
    b = write(tmp_path / "b", times(2, BOTH | {"fused": 0.6}))
    json_path, markdown_path = tmp_path / "c.json", tmp_path / "c.md"
    words = [a, b, "--fail-above=0.05", "--json", json_path, "--markdown", markdown_path]
    status, out, _ = run(capsys, *words)
    assert status == 1
    assert markdown_path.read_text() == out
    assert "2 metrics of 2 cells in both: 1 worse, 1 no difference." in out
    (row,) = [line for line in out.splitlines() if line.startswith("| small")]
    assert "fused" in row
    (fused,) = [one for one in json.loads(json_path.read_text())["metrics"] if one["optimization"] == "fused"]
    assert fused["ratio"]["low"] < 1.2 < fused["ratio"]["high"]
    assert fused["ratio_of_effects"]["low"] < 1.2 < fused["ratio_of_effects"]["high"]
    assert fused["effect_a"] == pytest.approx(0.5, rel=0.05)
    assert fused["effect_b"] == pytest.approx(0.6, rel=0.05)
    assert fused["failure"]
    assert run(capsys, b, a, "--fail-above", "0.05")[0] == 0, "it is faster"
    assert run(capsys, a, b)[0] == 0, "without --fail-above nothing fails"
    assert run(capsys, a, b, "--fail-above", "0.3")[0] == 0, "20 % is within a margin of 30 %"


def test_a_slower_host_fails_by_its_baseline_and_not_by_its_variants(tmp_path):
    slower = {variant: 1.3 * factor for variant, factor in BOTH.items()}
    found = compared(tmp_path, times(1, BOTH), times(2, slower))
    assert failed(found) == [("baseline", "time")]
    assert set(found.verdicts) == {"worse"}


@pytest.mark.parametrize("repeats", [1, 2])
def test_with_one_or_two_processes_nothing_is_decided(tmp_path, repeats):
    found = compared(tmp_path, times(1, BOTH, repeats), times(2, {"baseline": 3.0, "fused": 1.5}, repeats))
    assert set(found.verdicts) == {"undecided"}
    assert failed(found) == []
    intervals = [one.change.interval for one in found.metrics]
    assert all(one is None if repeats == 1 else one[0] < 3 < one[1] for one in intervals)


def noisy(seed, factor):
    draw = random.Random(seed)
    return [factor * draw.gauss(1e4, 50) for _ in range(5)]


ERROR = ("max_error", "1", "measured")


@pytest.mark.parametrize(
    ("metric", "a", "b", "verdict", "fails"),
    [
        (RATE, noisy(1, 1), noisy(2, 0.8), "worse", True),  # where more is better, less fails
        (RATE, noisy(1, 1), noisy(2, 1.2), "better", False),
        (BYTES, [1e9] * 3, [1.06e9] * 3, "worse", True),  # what repeats exactly needs no interval
        (BYTES, [1e9] * 3, [1.04e9] * 3, "worse", False),
        (BYTES, [1e9], [1.06e9], "undecided", False),  # one process shows no repetition
        (ERROR, [0.0] * 3, [1e-7] * 3, "undecided", False),  # which has no ratio
        (ERROR, [0.0] * 3, [0.0] * 3, "same", False),
    ],
)
def test_a_metric_is_worse_by_its_direction_and_beyond_its_noise(tmp_path, metric, a, b, verdict, fails):
    sides = ([record("baseline", i, {metric: [one]}) for i, one in enumerate(side)] for side in (a, b))
    found = compared(tmp_path, *sides)
    assert (found.verdicts, found.failed) == ((verdict,), (fails,))


def test_a_cell_that_no_longer_ends_ok_fails_only_if_it_does_in_no_repeat_or_is_wrong(capsys, tmp_path):
    def ended(*statuses):
        broken = [
            record("fused", i, {TIME: [1.0]} if status == "ok" else {}, status=status)
            for i, status in enumerate(statuses)
        ]
        return [*times(1, {"baseline": 1.0}, 3), *broken]

    a = write(tmp_path / "a", ended("ok", "ok", "ok"))
    none = write(tmp_path / "none", ended("out_of_memory", "crashed", "out_of_memory"))
    one = write(tmp_path / "one", ended("ok", "crashed", "crashed"))
    wrong = write(tmp_path / "wrong", ended("ok", "wrong_result", "ok"))
    for a_side, b_side, fails in ((a, none, 1), (a, wrong, 1), (a, one, 0), (one, none, 0), (none, a, 0)):
        status, out, _ = run(capsys, a_side, b_side, "--fail-above", "0.05")
        assert status == fails
        assert "fused on small (invented): " in out
    assert run(capsys, a, none)[0] == 0


def test_unlike_hosts_are_named_first_and_never_pooled(capsys, tmp_path):
    here, there = times(1, BOTH), times(2, BOTH, environment=OTHER_HOST)
    a = write(tmp_path / "a", here)
    b = write(tmp_path / "b", there, OTHER_HOST)
    _, out, _ = run(capsys, a, b)
    assert out.startswith("Hosts differ: 8 cores Processor A, 64 GiB, no GPU in A, ")
    mixed = write(tmp_path / "mixed", [*here, *there], HOST, OTHER_HOST)
    found = compare_folders(read_folder(a), read_folder(mixed))
    assert set(found.verdicts) == {"same"}, "A's host alone"
    found = compare_folders(read_folder(mixed), read_folder(mixed))
    assert len(found.metrics) == 4, "each host with itself"
    third = HOST._replace(cpu="Processor C")
    c = write(tmp_path / "c", times(3, BOTH, environment=third), third)
    found = compare_folders(read_folder(mixed), read_folder(c))
    assert [one.change.processes for one in found.metrics] == [(5, 5)] * 4, "each of A's hosts with B's"


def replaced(old, new):
    """Return what writes something else into the records of a folder."""

    def damage(folder):
        text = (folder / "records.jsonl").read_text()
        (folder / "records.jsonl").write_text(text.replace(old, new, 1))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (replaced('"measured","",[', '"measured","",["x",'), "is malformed"),
        (lambda b: [one.unlink() for one in b.iterdir()], "it has no records.jsonl"),
        (lambda b: (b / "plan.json").write_text("{"), "not a plan"),
        (lambda b: [one.write_text("[]") for one in b.glob("env*")], "not an environment"),
        (replaced('"schema":2', '"schema":9'), "line 1: a record of schema version 9, not 2"),
        (lambda b: (b / "records.jsonl").write_text(""), "holds no record of its plan"),
    ],
)
def test_a_folder_that_cannot_be_read_is_refused_in_one_line(capsys, tmp_path, damage, message):
    a, b = write(tmp_path / "a", times(1, BOTH)), write(tmp_path / "b", times(1, BOTH))
    damage(b)
    for words in ((a, b), (b, a)):
        status, out, error = run(capsys, *words)
        assert (status, out) == (2, "")
        assert error.startswith("harness.compare: ")
        assert message in error
        assert error.count("\n") == 1


def test_folders_without_a_common_ok_cell_and_files_that_cannot_be_written_are_refused(capsys, tmp_path):
    a = write(tmp_path / "a", times(1, {"baseline": 1.0}))
    b = write(tmp_path / "b", times(1, {"other": 1.0}))
    c = write(tmp_path / "c", [record("baseline", 0, {}, status="crashed")])
    for other in (b, c):
        status, _, error = run(capsys, a, other)
        assert (status, error) == (2, f"harness.compare: {a} and {other}: no cell ended ok in both\n")
    path = tmp_path / "nowhere" / "c.json"
    status, out, error = run(capsys, a, a, "--json", path)
    assert (status, out) == (2, "")
    assert error.startswith(f"harness.compare: cannot write {path}: ")


def test_welch_is_the_one_of_scipy():
    from scipy.stats import ttest_ind

    a, b = [0.1, 0.13, 0.11], [0.3, 0.2, 0.5, 0.27]
    found, theirs = welch(a, b), ttest_ind(b, a, equal_var=False)
    low, high = theirs.confidence_interval(0.95)
    assert found.interval == pytest.approx((math.exp(low), math.exp(high)))
    assert found.p_different() == pytest.approx(theirs.pvalue)
    above = ttest_ind(b, [x + 0.1 for x in a], equal_var=False, alternative="greater")
    assert found.p_beyond(0.1, 1) == pytest.approx(above.pvalue)
    assert welch(b, a).p_beyond(0.1, -1) == pytest.approx(above.pvalue)


def test_holm_rejects_step_by_step():
    assert holm([0.02, 0.001, 0.9, 0.013], 0.05) == [True, True, False, True]
    assert holm([0.02, 0.02, 0.02], 0.05) == [False] * 3
    assert significant([0.009, 0.009], [True, False], 0.01) == [False, False]
    assert significant([0.007, 0.001], [True, False], 0.01) == [True, True]
    assert significant([0.009], [False], 0.01) == [True], "the only family has the whole level"


def real_processes(experiment):
    """Return the sets of each operation of a trust experiment, which ran at different times, by processes.

    A process has the location of the rounds of each of its first variants, which ran identical code. A run
    has processes by operation.
    """

    def location(rounds):
        return ratio([rounds], [[1.0] * len(rounds)]).value

    found = {}
    with gzip.open(ROOT / f"results/reference/trust/ours_{experiment}.jsonl.gz", "rt") as lines:
        for one in map(json.loads, lines):
            same = [i for i, units in enumerate(one["units"]) if units == one["units"][0]][:7]
            sets = [[location(process[i]) for i in same] for process in one["times"]]
            found.setdefault(one["op"], []).append(sets)
    return found


def at_other_times(sets, processes, draw):
    """Return two runs of identical code: for each operation two sets, so that the host has drifted."""
    pairs = {op: draw.sample(several, 2) for op, several in sets.items() if len(several) > 1}
    return [{op: draw.sample(pair[side], processes) for op, pair in pairs.items()} for side in (0, 1)]


def split(sets, processes, draw):
    """Return two runs of identical code: the processes of each operation, divided at random."""
    pools = {op: [one for several in of_op for one in several] for op, of_op in sets.items()}
    drawn = {op: draw.sample(pool, 2 * processes) for op, pool in pools.items() if len(pool) >= 2 * processes}
    return [{op: one[side::2] for op, one in drawn.items()} for side in (0, 1)]


def synthetic(spread, tails, cells=100):
    """Return a maker of two runs of identical code, in which processes differ by `spread`."""

    def normal(draw):
        return draw.gauss(0, 1)

    def heavy(draw):
        return draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2) / 3) / math.sqrt(3)

    noise = {"normal": normal, "heavy tails": heavy}[tails]

    def make(sets, processes, draw):
        def process():
            shared = noise(draw)  # of the process, which all of its variants feel
            return [math.exp(spread * (shared + noise(draw)) / math.sqrt(2)) for _ in range(7)]

        return [
            {f"op{i}": [process() for _ in range(processes)] for i in range(cells // 7)} for _ in range(2)
        ]

    return make


def folder_of(run, slower, all_slower=1.0):
    """Return a run as a results folder, one round per process."""
    records = [
        record(
            f"v{variant}" if variant else "baseline",
            repeat,
            {TIME: [time_s * slower.get((op, variant), 1.0) * all_slower]},
            workload=op,
        )
        for op, processes in run.items()
        for repeat, process in enumerate(processes)
        for variant, time_s in enumerate(process)
    ]
    return ResultsFolder(Path("simulated"), tuple(records), {})


def simulate(make, sets, processes, count, slow, margin=0.05, seed=0):
    """Return in how many of `count` comparisons an unchanged metric failed, and in how many the slower one.

    `slow`: "" nothing is slower in B, "variant" or "baseline" one is by 20 %, "all" everything is.
    """
    draw = random.Random(seed)
    wrongly = found = 0
    for _ in range(count):
        a, b = make(sets, processes, draw)
        op = draw.choice(list(b))
        at = {"variant": draw.randrange(1, len(b[op][0])), "baseline": 0}.get(slow, -1)
        slower = {(op, at): 1.2} if at >= 0 else {}
        changed = compare_folders(
            folder_of(a, {}), folder_of(b, slower, 1.2 if slow == "all" else 1.0), margin
        )
        names = {
            (one.workload, int(one.optimization.removeprefix("baseline").removeprefix("v") or 0))
            for one, is_failed in zip(changed.metrics, changed.failed, strict=True)
            if is_failed
        }
        wrongly += bool(names - slower.keys()) and slow != "all"
        found += bool(names & slower.keys()) or (slow == "all" and bool(names))
    return wrongly, found


@pytest.mark.slow
@pytest.mark.parametrize(("make", "processes"), [(at_other_times, 3), (split, 5)])
def test_identical_runs_of_real_processes_do_not_fail(make, processes):
    sets = real_processes("five")
    wrongly, _ = simulate(make, sets, processes, 25, "")
    assert wrongly <= 25 * FALSE_FAILURES


@pytest.mark.slow
@pytest.mark.parametrize("tails", ["normal", "heavy tails"])
def test_at_the_margin_itself_one_in_a_hundred_fails_at_most(tails):
    """Without a margin, identical runs are the worst case of "not worse than the margin"."""
    wrongly, _ = simulate(synthetic(0.02, tails, 35), None, 5, 300, "", margin=0.0)
    assert wrongly <= 8, "more than 8 of 300 have a probability of 1 % if 1 in 100 fails"


ROWS = [
    ("real, at other times, quiet host", at_other_times, "five"),
    ("real, at other times, busy host", at_other_times, "five_busier"),
    ("real, split, quiet host", split, "five"),
    ("real, split, busy host", split, "five_busier"),
    ("synthetic, normal, 1 %", synthetic(0.01, "normal"), ""),
    ("synthetic, normal, 3 %", synthetic(0.03, "normal"), ""),
    ("synthetic, heavy tails, 3 %", synthetic(0.03, "heavy tails"), ""),
]


def table(count):
    """Yield the table of docs/commands/compare.md, of so many comparisons per value."""
    for name, make, experiment in ROWS:
        sets = real_processes(experiment) if experiment else None
        for processes in (3, 5):
            wrongly, _ = simulate(make, sets, processes, count, "")
            strict, _ = simulate(make, sets, processes, count, "", margin=0.0)
            found = [
                simulate(make, sets, processes, count // 2, one)[1] for one in ("variant", "baseline", "all")
            ]
            shares = " | ".join(f"{100 * one / (count // 2):.0f} %" for one in found)
            yield f"| {name} | {processes} | {wrongly} of {count} | {strict} of {count} | {shares} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1])):
        print(line, flush=True)
