"""harness.cost: what tokens cost at the throughput of any results, and what a run that is predicted costs."""

import json
import math
import re

import pytest
from own_texts import TITAN
from shown import again, blocks_of
from synthetic import made

from harness.answer import Interval
from harness.ask import advise
from harness.ask.cost import KEYS, goodput, lists_of, main, rate_of, throughputs, times
from harness.commands.grammar import read
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import workloads_of
from harness.config.run import names
from harness.instruments.prices import price_lists
from harness.records import Unavailable, record_to_json
from harness.sweep.store import RECORDS

H100 = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "ranks": "4"}
GB200 = {**H100, "device_name": "NVIDIA GB200"}


def record(metrics=(("time", 2.0), ("tokens_per_step", 8000.0)), origin="measured", conditions=H100, **more):
    """Return a record: by default 8,000 tokens in 2 s on four GPUs."""
    figures = {(name, ""): ("1", origin, (value,)) for name, value in metrics}
    return made(figures=figures, conditions=conditions, **more)


def results(folder, *records):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORDS).write_text("".join(f"{record_to_json(one)}\n" for one in records))
    return str(folder)


def timed(seconds, **more):
    return record((("time", seconds), ("tokens_per_step", 8000.0)), **more)


OF_LOADING = (("throughput", 4000.0), ("tokens_per_step", 100.0))


@pytest.mark.parametrize(
    ("records", "tokens_per_s"),
    [
        ([record()], [1000.0]),
        ([record(conditions={**H100, "ranks": ""})], [4000.0]),  # of one device
        ([record((("throughput", 4000.0), ("step_time", 1.0)))], [1000.0]),  # of all devices
        ([record((("tokens_per_s_per_device", 4000.0), ("step_time", 1.0)))], [4000.0]),
        ([timed(2.0), timed(4.0, repeat=1), timed(8.0, repeat=2)], [500.0]),  # the median time
        ([record(status="crashed")], []),
        ([record(), record()._replace(status="wrong_result")], []),
        ([record(OF_LOADING)], []),  # which is not training
    ],
)
def test_tokens_per_second_of_a_device(records, tokens_per_s):
    assert [one.tokens_per_s for one in throughputs(records)[0]] == tokens_per_s


def test_the_users_rate_by_hand(tmp_path, capsys):
    """1,000 tokens/s at $3.60 per hour: $1 per million tokens, and a run of 2e9 tokens is $2,000."""
    fast = timed(1.0, optimization="fast")
    for word in ("rate", "price"):
        assert main([results(tmp_path, record(), fast), f"{word}=3.6", "tokens=2e9"]) == 0
        lines = capsys.readouterr().out.splitlines()
        row = next(line for line in lines if line.startswith("small"))
        assert row.split()[-6:] == ["ᵐ", "3.60", "1", "556", "2", "k$"]
        assert "−50.0 %" in next(line for line in lines if " fast" in line)


def test_what_no_list_prices_is_priced_by_the_users_rate_alone(tmp_path, capsys):
    for more, reason in (
        ({"conditions": {**H100, "device": "cpu"}}, "1 throughput of a CPU or of an emulation"),
        ({"origin": "emulated"}, "1 throughput of a CPU or of an emulation"),
        ({"conditions": {**H100, "device_name": "NVIDIA Z9"}}, "NVIDIA Z9 is not in conf/hardware"),
    ):
        folder = results(tmp_path, record(**more))
        assert main([folder]) == 2
        assert f"{reason}; give rate=DOLLARS per GPU-hour\n" in capsys.readouterr().err
        assert main([folder, "rate=1"]) == 0


def test_rates_in_their_units():
    for text in ("2.5", "2.5/h", "1825/month", "20/node", "14600/node/month"):
        words = [f"rate={text}", *(["gpus_per_node=8"] if "node" in text else [])]
        assert rate_of(read(words, KEYS)) == pytest.approx(2.5)


GOOD = {"kind": "owned", "date": "2026-11", "source": "me", "USD_per_h": {"gb200": 2.0}}
BAD = {
    "kind=stolen": {"kind": "stolen"},
    "date=May": {"date": "May"},
    "USD_per_h.gb200=101": {"USD_per_h": {"gb200": 101}},
    "expected USD_per_h and gpus_per_node by machine": {"USD_per_h": 2},
    "gpus_per_node.gb200=0": {"gpus_per_node": {"gb200": 0}},
    "prices.mine.memory": {"memory": 80},
}


def test_a_wrong_price_list_is_refused_in_one_line():
    assert price_lists({"mine": GOOD})[0].usd_per_h == {"gb200": 2.0}
    for key, change in BAD.items():
        with pytest.raises(Unavailable, match=re.escape(key)) as refused:
            price_lists({"mine": {**GOOD, **change}})
        assert "\n" not in str(refused.value)


def test_a_gpu_is_priced_by_every_list_that_has_it_or_by_ones_own(tmp_path, capsys):
    own = tmp_path / "mine.yaml"
    own.write_text('mine: {kind: reserved, date: "2026-11", source: us, USD_per_h: {h100_80gb: 16}, '
                   "gpus_per_node: {h100_80gb: 8}}")  # fmt: skip
    folder = results(tmp_path, record())
    assert main([folder]) == 0
    out = capsys.readouterr().out
    for one in lists_of(""):
        assert (f"{one.name}: " in out) == ("h100_80gb" in one.usd_per_h)
    model = f"model={ROOT}/tests/data/configs/llama-3.1-8b.json"
    for words in ([folder], [model, "gpus=16", "layout=tp:2", f"out={tmp_path}"]):
        assert main([*words, f"prices={own}"]) == 0
        assert "mine: rented by contract, 2026-11" in capsys.readouterr().out


def test_prices_are_those_of_machines_of_conf_hardware_and_of_suite_cost():
    assert {machine for one in lists_of("") for machine in one.usd_per_h} <= set(names("hardware"))
    both, shown = {"h100_80gb", "gb200"}, ("h100_80gb", "h200", "gb200")
    table = [
        one._replace(usd_per_h={name: one.usd_per_h[name] for name in shown if name in one.usd_per_h})
        for one in lists_of("")
        if both <= one.usd_per_h.keys()
    ]
    assert len(table) > 3
    (prices,) = {json.dumps(one["prices"]) for one in workloads_of("cost").values()}
    assert price_lists(json.loads(prices)) == table


def test_a_run_is_priced_before_it_is_run(tmp_path, capsys):
    """GPU-hours are tokens over the adviser's tokens/s, days those over the GPUs, dollars by the rate."""
    (tmp_path / "titan.toml").write_text(TITAN)
    words = [f"config={tmp_path / 'titan.toml'}", "gpus=16", f"out={tmp_path / 'out'}"]
    assert advise.main(words) == 0
    own = capsys.readouterr().out
    assert main([*words, "tokens=1e12", "rate=20/node"]) == 0
    said = capsys.readouterr().out

    def numbers(pattern, text):
        found = re.search(pattern.replace("(", r"\(").replace("N", r"([\d.,]*\d)"), text)
        return [float(one.replace(",", "")) for one in found.groups()]

    (rate,) = numbers("N tokens/s per GPU", own)
    (steps,) = numbers("steps alone, as tuned +N", said)
    assert said.startswith("1e+12 tokens take ")  # the run comes before its steps
    days, *of_days = numbers("tokens take N days (N … N", said)
    hours, usd, *of_usd = numbers("N GPU-hours, N k[$] (N k[$] … N k[$]", said)
    assert steps == pytest.approx(1e12 / rate / 3600, rel=1e-3)
    assert days == pytest.approx(hours / 16 / 24, rel=0.01)
    assert usd == pytest.approx(2.5 * hours / 1000, rel=0.01)
    assert [one / usd for one in of_usd] == pytest.approx([one / days for one in of_days], rel=0.02)
    (run,) = numbers("the run, as others run it +N", said)
    assert hours == pytest.approx(run)


def test_a_run_takes_longer_than_its_steps(capsys, tmp_path):
    """By hand from conf/goodput.yaml; what Meta published of Llama 3 and 3.1 is inside of what is printed.

    GPU-hours: https://github.com/meta-llama/llama3/blob/main/MODEL_CARD.md (8B and 70B, 15 T tokens) and
    https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md (all of them).
    """
    factor, runs = goodput()
    ratios = [1082990 / 974600, 118 / 90.4, 56 / 33]
    assert factor == pytest.approx((min(ratios), math.prod(ratios) ** (1 / 3), max(ratios)))
    assert pytest.approx(974600, rel=1e-3) == 366e9 / 2048**2 * 104.7 * 384 / 3600  # BLOOM's steps
    assert pytest.approx(90.4, rel=1e-3) == 3e12 / 24000 / 16 / 86400  # TinyLlama's
    assert len(runs) == 3
    found = times(Interval(0.5, 1.0, 4.0), Interval(0.5, 2.0, 2.0))
    assert found == pytest.approx((2 * math.exp(-math.hypot(math.log(2), math.log(4))), 2.0, 8.0))

    published = {"8b": (1024, 1.3e6, 1.46e6), "70b": (2048, 6.4e6, 7.0e6), "405b": (16384, 30.84e6)}
    for name, (gpus, *hours) in published.items():
        words = f"model=llama-3.1-{name} gpus={gpus} link=400gbit seq_len=8192 tokens_per_batch=16M rate=2"
        assert main([*words.split(), "device=h100_80gb", "tokens=15e12", f"out={tmp_path}"]) == 0
        said = capsys.readouterr().out
        spans = [
            [float(end.replace(",", "")) for end in re.findall(r"[\d,]{4,}", line)]
            for line in said.splitlines()
            if line.startswith("the run, as")
        ]
        assert len(spans) == 2
        assert all(
            min(low for _, low, _ in spans) <= one <= max(high for _, _, high in spans) for one in hours
        )
        steps = float(re.search(r"steps alone, as tuned +([\d,]+)", said)[1].replace(",", ""))
        assert spans[0][0] == pytest.approx(steps * factor.likely, rel=1e-5)


def test_the_page_shows_what_is_printed():
    """`python -m tests.support.shown docs/commands/cost.md` writes what has changed."""
    text = (ROOT / "docs/commands/cost.md").read_text()
    assert len([*blocks_of(text)]) == 1
    assert again(text) == text
