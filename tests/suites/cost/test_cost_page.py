"""docs/commands/cost.md states what the cost suite calculates."""

import re

import numpy as np
from test_cost import BASELINE, OF_H200, OF_MLPERF, PAIRS, RUN, usd_per_h, values_of

from harness.config.code_fingerprint import ROOT
from suites.cost import suite as cost


def test_the_page_states_what_the_suite_calculates():
    """Each number of docs/commands/cost.md that is not a quotation, as the page writes it."""
    found, base = values_of(), values_of(variant=BASELINE)
    speed_ups = {name: values_of(name)["speedup", ""] for name in PAIRS}
    alike = [speed_up for name, speed_up in speed_ups.items() if RUN.workloads[name]["alike"]]
    rented = sum(one > found["break_even", "rented_2026_07"] for one in speed_ups.values())
    rented_alike = sum(one > found["break_even", "rented_2026_07"] for one in alike)
    owned = sum(one > found["break_even", "formula"] for one in speed_ups.values())
    ends = {
        method: [found[f"break_even_{end}", method] for end in ("low", "high")]
        for metric, method in found
        if metric == "break_even_low"
    }
    shared = [value for name in cost.OWNER for value in ends[name]]
    power = [value for name, values in ends.items() if name.startswith("power") for value in values]
    rack = ends["server_USD of gb200"]
    bands = [found["break_even", "band"], base["cost_rate", "band"], found["cost_rate", "band"]]
    stated = [
        f"costs its owner {found['break_even', 'formula']:.2f} times as much",
        f"{bands[0][0]:.2f} to {bands[0][1]:.2f} in 90 % of the",
        f"in {owned} of {len(PAIRS)} published pairs",
        f"it pays off in {rented} of the {len(PAIRS)}",
        f"${usd_per_h(base):.2f} ({bands[1][0]:.2f} to {bands[1][1]:.2f})",
        f"${usd_per_h(found):.2f} ({bands[2][0]:.2f} to {bands[2][1]:.2f})",
        f"between {min(shared):.2f} and {max(shared):.2f} at most",
        f"({min(power):.2f} to {max(power):.2f}) and the price",
        f"price of the rack ({min(rack):.2f} to {max(rack):.2f})",
        f"interest of {100 * base['interest', 'calibrated']:.1f} % at which H100 costs $1.42",
        f"GB200 costs ${usd_per_h(found, 'calibrated'):.2f}",
        f"in {rented_alike} of the {len(alike)} that have the same",
        f"needs {found['break_even', 'formula'] / 0.8:.2f} times the speed",
    ]
    page = " ".join((ROOT / "docs/commands/cost.md").read_text().split())
    assert not [one for one in stated if one not in page]


def test_the_page_counts_the_pairs_and_what_breaks_even():
    """Each row of its tables: prices with the pairs above them, and kinds of pairs with their medians."""
    found = values_of()
    speed_ups = {name: values_of(name)["speedup", ""] for name in (*PAIRS, *OF_H200)}
    of_h100 = {name: speed_ups[name] for name in PAIRS}
    page = (ROOT / "docs/commands/cost.md").read_text()
    for method, start in {
        "formula": "owned, by the formula",
        "semianalysis_2025_08": "owned, SemiAnalysis",
        "hyperscaler_2026_07": "owned, hyperscaler",
        "neocloud_2026_07": "owned, neocloud",
        "rented_2026_07": "rented, July 2026",
        "coreweave_2026_02": "on demand, CoreWeave",
    }.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {start}"))
        above = sum(one > found["break_even", method] for one in of_h100.values())
        assert f"{found['break_even', method]:.2f}×" in row
        assert row.endswith(f"| {above} of {len(PAIRS)} |")
    kinds = {
        "tokens/s, compared with H100": [name for name in PAIRS if name not in OF_MLPERF],
        "MLPerf Training, samples/s, compared with H100": [name for name in PAIRS if name in OF_MLPERF],
        "all that are compared with H100": PAIRS,
        "of these, the same number of GPUs, batch and precision": [
            name for name in PAIRS if RUN.workloads[name]["alike"]
        ],
        "MLPerf Training, samples/s, compared with H200": OF_H200,
    }
    for kind, names in kinds.items():
        ratios = [speed_ups[name] for name in names]
        above = sum(one > found["break_even", "formula"] for one in ratios)
        last = "see below" if names is OF_H200 else str(above)
        row = f"| {kind} | {len(names)} | {np.median(ratios):.2f}× | {min(ratios):.2f}× | {last} |"
        assert row in page
    every = list(of_h100.values())
    text = " ".join(page.split())
    above = sum(one > 1.6 for one in every)
    assert f"{len(every)} pairs compare GB200 with H100: half are above {np.median(every):.2f}×" in text
    assert f"half are above {np.median(every):.2f}×, and {above} are above 1.6×" in text
    below = [name for name, one in of_h100.items() if one <= 1.6]
    of_mlperf = [name for name in below if name in OF_MLPERF]
    assert f"Of the {len(below)} pairs with H100 that are not above 1.6×, one is DeepSeek-V3" in text
    assert f"one is DeepSeek-V3 and {len(of_mlperf)} are of MLPerf" in text
    assert [name for name in below if name not in OF_MLPERF] == ["pair_deepseek_v3_bf16"]
    assert not [name for name in of_mlperf if "lora" in name or "llama" in name]
    mlperf = {name: of_h100[name] for name in PAIRS if name in OF_MLPERF}
    llama = [one for name, one in mlperf.items() if "lora" in name or "llama" in name]
    others = [one for name, one in mlperf.items() if "lora" not in name and "llama" not in name]
    assert len(llama) == 3
    assert f"reach {min(llama):.2f}× to {max(llama):.2f}×, the other {len(others)} pairs of MLPerf" in text
    assert f"pairs of MLPerf {min(others):.2f}× to {max(others):.2f}×." in text


def counted(text: str) -> set[tuple[int, ...]]:
    """Return what a text states of published pairs of GB200: their numbers, and `a of b` as (a, b).

    A paragraph or table that names GB200 and pairs is read; elsewhere such words are about something else.
    """
    about = [one for one in re.split(r"\n\s*\n", text) if "GB200" in one and re.search(r"\bpairs\b", one)]
    found: set[tuple[int, ...]] = set()
    for paragraph in (" ".join(one.split()) for one in about):
        # The number before `pairs`, with at most two words between; words such as "Six" are no digits.
        found |= {(int(one),) for one in re.findall(r"\b(\d+) (?:[a-zA-Z]+ ){0,2}pairs\b", paragraph)}
        found |= {
            (int(a), int(b))
            for a, b in re.findall(r"(?<![\d.,])(\d+) (?:of|in) (?:the )?(\d+)\b(?![.,]\d| ?%)", paragraph)
        }
    return found


def test_no_page_counts_the_pairs_differently():
    """Each count of published pairs in README and docs is one that the committed inputs give."""
    found = values_of()
    speed_ups = {name: values_of(name)["speedup", ""] for name in (*PAIRS, *OF_H200)}
    of_mlperf = [name for name in PAIRS if name in OF_MLPERF]
    alike = [name for name in PAIRS if RUN.workloads[name]["alike"]]
    ends = [
        1.6,
        *(value for (metric, _), value in found.items() if metric == "break_even" and np.ndim(value) == 0),
    ]
    groups = [PAIRS, of_mlperf, [name for name in PAIRS if name not in OF_MLPERF], alike, OF_H200, OF_MLPERF]
    right: set[tuple[int, ...]] = set()
    for names in groups:
        above = {sum(speed_ups[name] > end for name in names) for end in ends}
        right |= {(len(names),)} | {(one, len(names)) for one in above}
    of_llama = {name for name in of_mlperf if "lora" in name or "llama" in name}
    right |= {(len(of_mlperf) - len(of_llama),), (sum(speed_ups[name] <= 1.6 for name in PAIRS),)}
    texts = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
    wrong = {str(path.relative_to(ROOT)): counted(text) - right for path, text in texts.items()}
    assert not {path: counts for path, counts in wrong.items() if counts}
    assert (len(PAIRS),) in counted(texts[ROOT / "docs/commands/cost.md"])
    # Another count, as this page once had it, is found.
    other = "**Another count** of GB200 has 43 pairs that include MLPerf; 42 of 43 are above 1.6×."
    assert counted(other) - right == {(43,), (42, 43)}


def test_the_page_states_what_breaks_even_against_h200():
    found = {name: values_of(name) for name in OF_H200}
    first = found[OF_H200[0]]
    lists = ("hyperscaler_2026_07", "neocloud_2026_07", "rented_2026_07", "coreweave_2026_02")
    breaks_even = [first["break_even", name] for name in lists]
    kinds = ("owned, hyperscaler", "owned, neocloud", "rented", "on demand")
    shown = [f"{one:.2f}× ({kind})" for one, kind in zip(breaks_even, kinds, strict=True)]
    pays = [str(sum(one["speedup", ""] > even for one in found.values())) for even in breaks_even]
    text = " ".join((ROOT / "docs/commands/cost.md").read_text().split())
    assert f"breaks even at {', '.join(shown[:3])} and {shown[3]}. It pays off in" in text
    assert f"It pays off in {', '.join(pays[:3])} and {pays[3]} of the {len(OF_H200)} pairs." in text
