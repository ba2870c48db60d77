"""`python -m harness.cost`: what tokens cost at the throughput of any results."""

import pytest
from synthetic import made

from harness.commands.cost.command import machines_by_device, main
from harness.commands.cost.throughput import throughputs
from harness.commands.grammar import read
from harness.commands.prices import KEYS, lists_of, rate_of
from harness.config.code_fingerprint import ROOT
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.instruments.prices import price_lists
from harness.records import Unavailable, record_to_json
from harness.sweep.store import RECORDS

H100 = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "ranks": "4"}


def results(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORDS).write_text("".join(f"{record_to_json(one)}\n" for one in records))
    return str(folder)


def step(time_s=2.0, tokens=8000.0, origin="measured", conditions=H100, **more):
    figures = {
        ("time", ""): ("s", origin, (time_s,)),
        ("tokens_per_step", ""): ("1", "calculated", (tokens,)),
    }
    return made(figures=figures, conditions=conditions, **more)


def test_tokens_of_all_devices_over_time_and_devices():
    """8,000 tokens in 2 s on four GPUs."""
    (one,) = throughputs([step()])
    assert (one.tokens_per_s, one.origin, one.is_of_a_gpu) == (1000.0, "measured", True)


def test_what_was_wrong_in_one_process_is_not_priced():
    assert throughputs([step(), step()._replace(status="wrong_result")]) == []


def test_a_throughput_of_all_devices_is_divided_and_one_per_device_is_not():
    step_time = {("step_time", ""): ("s", "measured", (1.0,))}
    of_all, of_one = (
        made(figures={(metric, ""): ("token/s", "measured", (4000.0,)), **step_time}, conditions=H100)
        for metric in ("throughput", "tokens_per_s_per_device")
    )
    assert throughputs([of_all])[0].tokens_per_s == 1000.0
    assert throughputs([of_one])[0].tokens_per_s == 4000.0


def loading(**more):
    """Return a record of loading data alone: tokens/s, and tokens per step, but no time of a step."""
    figures = {
        ("throughput", ""): ("token/s", "measured", (4000.0,)),
        ("tokens_per_step", ""): ("1", "measured", (100.0,)),
        ("time_per_batch", ""): ("s", "measured", (0.025,)),
    }
    return made(figures=figures, conditions=H100, **more)


def test_loading_alone_is_not_priced_as_training(tmp_path, capsys):
    assert not throughputs([loading()])
    assert main([results(tmp_path, loading(), loading(repeat=1)), "rate=1"]) == 2
    reason = "1 throughput is of loading data without training, which is not what a token costs"
    assert f"no throughput of training; {reason}" in capsys.readouterr().err
    assert main([results(tmp_path, step(), loading(workload="loader")), "rate=1"]) == 0
    out = capsys.readouterr().out
    assert "\nloader" not in out
    assert f"Not priced: {reason}." in out


def test_the_loader_suites_reference_prices_training_alone(capsys):
    assert main([str(ROOT / "results/reference/dataloader"), "rate=2.5"]) == 0
    out = capsys.readouterr().out
    assert "memory_parquet" not in out
    assert "train_dp2" in out
    assert "throughputs are of loading data without training" in out


def test_one_rate_for_several_devices_is_said(tmp_path, capsys):
    other = step(workload="other", conditions={**H100, "device_name": "NVIDIA GB200"})
    assert main([results(tmp_path, step(), other), "rate=1"]) == 0
    assert "One rate for NVIDIA H100 80GB HBM3 and NVIDIA GB200: changes are" in capsys.readouterr().out


def test_a_record_without_a_number_of_ranks_is_of_one_device():
    (one,) = throughputs([step(conditions={**H100, "ranks": ""})])
    assert one.tokens_per_s == 4000.0


def test_repeats_are_one_throughput_by_the_median_time():
    (one,) = throughputs([step(2.0), step(4.0, repeat=1), step(8.0, repeat=2)])
    assert one.tokens_per_s == 500.0


def test_a_cell_that_failed_has_no_throughput():
    assert not throughputs([step(status="crashed")])


def test_the_users_rate_by_hand(tmp_path, capsys):
    """1,000 tokens/s at $3.60 per hour: $1 per million tokens, and a run of 2e9 tokens is $2,000."""
    assert main([results(tmp_path, step()), "rate=3.6", "tokens=2e9"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("small"))
    assert row.split()[-6:] == ["ᵐ", "3.60", "1", "556", "2", "k$"]


def test_a_gpu_is_priced_by_every_list_that_has_it(tmp_path, capsys):
    assert main([results(tmp_path, step())]) == 0
    out = capsys.readouterr().out
    for one in lists_of(""):
        assert (f"{one.name}: " in out) == ("h100_80gb" in one.usd_per_h)
        assert one.date in out or "h100_80gb" not in one.usd_per_h


@pytest.mark.parametrize(
    ("origin", "conditions"),
    [("measured", {**H100, "device": "cpu"}), ("emulated", H100)],
    ids=["cpu", "emulated"],
)
def test_a_cpu_or_an_emulation_is_priced_by_the_users_rate_alone_and_it_says_so(
    tmp_path, capsys, origin, conditions
):
    folder = results(tmp_path, step(origin=origin, conditions=conditions))
    assert main([folder]) == 2
    error = capsys.readouterr().err.strip()
    assert error.endswith("1 throughput of a CPU or of an emulation; give rate=DOLLARS per GPU-hour")
    assert "\n" not in error
    assert main([folder, "rate=1"]) == 0
    assert "1 throughput is of a CPU or of an emulation: priced at your rate" in capsys.readouterr().out


def test_a_variant_is_compared_with_the_baseline_of_its_workload(tmp_path, capsys):
    fast = step(1.0, optimization="fast")
    assert main([results(tmp_path, step(), fast), "rate=1"]) == 0
    assert "−50.0 %" in next(line for line in capsys.readouterr().out.splitlines() if " fast" in line)


def test_a_device_that_no_list_has_is_named(tmp_path, capsys):
    folder = results(tmp_path, step(conditions={**H100, "device_name": "NVIDIA Z9"}))
    assert main([folder]) == 2
    assert "NVIDIA Z9 is not in conf/hardware; give rate=" in capsys.readouterr().err


WITH_THROUGHPUT = (
    "cost", "dataloader", "interconnect", "interconnect_formula", "interconnect_formula_own",
    "interconnect_two_a_node", "kernels", "kernels_bf16", "kernels_h100", "offload", "offload_long",
    "overlap", "stack", "step_gains", "profiling", "profiling_h100", "profiling_h200",
    "fsdp_versions",
)  # fmt: skip


@pytest.mark.parametrize("name", WITH_THROUGHPUT)
def test_the_results_of_other_suites_can_be_read_in_money(name, capsys):
    assert main([str(ROOT / "results/reference" / name), "rate=2.5"]) == 0
    assert "$/Mtoken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("2.5", None, 2.5),
        ("2.5/h", None, 2.5),
        ("20/node", "8", 2.5),
        ("1825/month", None, 2.5),
        ("14600/node/month", "8", 2.5),
    ],
)
def test_rates_in_their_units(text, gpus, expected):
    nodes = [f"gpus_per_node={gpus}"] if gpus else []
    assert rate_of(read([f"rate={text}", *nodes], KEYS)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["rate=-2"], "rate=-2: expected dollars per GPU-hour above 0"),
        (["rate=0"], "rate=0: expected dollars"),
        (["rate=2 EUR"], "rate=2 EUR: expected dollars"),
        (["rate="], "rate=: expected a value"),
        (["rate=1800"], "rate=1800: $1,800 per GPU-hour, expected at most 100; a node's price needs /node"),
        (["rate=20/node"], "a rate per node needs gpus_per_node=NUMBER"),
        (["rate=20/node", "gpus_per_node=0.5"], "gpus_per_node=0.5: expected a whole number"),
        (["rate=20", "gpus_per_node=8"], "gpus_per_node=8: read only with a rate per node"),
        (["tokens=15"], "tokens=15: expected at least 1e+06, as 15e12 for 15 trillion"),
        (["tokens=-1"], "tokens=-1: expected a number above 0"),
        (["prices=rented"], "prices=rented: no such name; did you mean rented_2026_07?"),
        (["price=2"], "price: no such name; did you mean prices?"),
        (["rate=1", "prices=rented_2026_07"], "rate and prices: give one of the two"),
        (["rate=1", "rate=2"], "rate: given twice"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, capsys, words, error):
    assert main([results(tmp_path, step()), *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert error in lines[0]


def test_every_other_reference_folder_is_refused_in_one_line(capsys):
    others = [path.parent for path in (ROOT / "results/reference").glob("*/records.jsonl")]
    for folder in others:
        if folder.name not in WITH_THROUGHPUT:
            assert main([str(folder), "rate=2.5"]) == 2, folder.name
            assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_folder_without_results_or_throughput_is_refused(tmp_path, capsys):
    assert main([str(tmp_path / "none")]) == 2
    assert "none: no such folder" in capsys.readouterr().err
    assert main([results(tmp_path, made(figures={}))]) == 2
    assert "no record has a throughput" in capsys.readouterr().err


def test_a_list_of_the_users_own(tmp_path, capsys):
    own = tmp_path / "mine.yaml"
    own.write_text(
        'mine: {kind: reserved, date: "2026-11", source: our contract, gpus_per_node: {h100_80gb: 8}, '
        "USD_per_h: {h100_80gb: 16}}"
    )
    assert main([results(tmp_path / "results", step()), f"prices={own}"]) == 0
    assert "mine: rented by contract, 2026-11" in capsys.readouterr().out
    own.write_text("mine: {kind: reserved, source: our contract, USD_per_h: {h100_80gb: 2}}")
    assert main([results(tmp_path / "results", step()), f"prices={own}"]) == 2
    assert "prices.mine.date: missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind": "stolen"}, "kind=stolen: expected one of owned, reserved, on_demand"),
        ({"date": "May"}, "date=May: expected a date"),
        ({"USD_per_h": {"gb200": -2}}, "USD_per_h.gb200=-2: expected dollars per hour"),
        (
            {"USD_per_h": {"gb200": 900}},
            "per GPU-hour, expected at most 100; a node's price needs gpus_per_node.gb200",
        ),
        ({"USD_per_h": 2}, "expected USD_per_h and gpus_per_node by machine"),
        ({"gpus_per_node": {"gb200": 0}}, "gpus_per_node.gb200=0: expected a whole number"),
        ({"memory": 80}, "prices.mine.memory: no such key"),
        (
            {"second_hand": {"h100_80gb": "by notes"}},
            "second_hand={'h100_80gb': 'by notes'}: expected a machine",
        ),
    ],
)
def test_a_wrong_price_list_is_refused_in_one_line(change, error):
    good = {"kind": "owned", "date": "2026-11", "source": "me", "USD_per_h": {"gb200": 2.0}}
    assert price_lists({"mine": good})[0].usd_per_h == {"gb200": 2.0}
    with pytest.raises(Unavailable) as refused:
        price_lists({"mine": {**good, **change}})
    assert error in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_second_hand_price_says_so_where_it_is_used(tmp_path, capsys):
    """$2.36 per GPU-hour of GB200: the part of its source that has it was not read."""
    folder = results(tmp_path, step(conditions={**H100, "device_name": "NVIDIA GB200"}))
    assert main([folder, "prices=semianalysis_2025_08"]) == 0
    assert "Second-hand price of gb200: $2.36 is by notes of others" in capsys.readouterr().out
    assert main([results(tmp_path, step()), "prices=semianalysis_2025_08"]) == 0
    assert "Second-hand" not in capsys.readouterr().out


def test_every_listed_machine_is_one_of_conf_hardware():
    assert {machine for one in lists_of("") for machine in one.usd_per_h} <= set(names("hardware"))


def test_the_suites_prices_are_those_of_the_table_that_have_both_machines():
    both, shown = {"h100_80gb", "gb200"}, ("h100_80gb", "h200", "gb200")
    listed = [one for one in lists_of("") if both <= one.usd_per_h.keys()]
    table = [
        one._replace(usd_per_h={name: one.usd_per_h[name] for name in shown if name in one.usd_per_h})
        for one in listed
    ]
    (run,) = load(["suite=cost"])
    assert len(table) > 3
    assert all(price_lists(one["prices"]) == table for one in run.workloads.values())


def test_devices_are_found_by_what_the_driver_reports_and_by_the_datasheets_name():
    found = machines_by_device(["NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM", "", "a CPU"])
    assert found == {"NVIDIA H100 80GB HBM3": "h100_80gb", "NVIDIA H100 SXM": "h100_80gb"}


def test_a_wrong_rate_raises_a_config_error():
    with pytest.raises(ConfigError):
        rate_of(read(["rate=nan"], KEYS))
