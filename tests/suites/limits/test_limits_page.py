"""docs/suites/limits.md states what the reference records of the limits suite have."""

from __future__ import annotations

from harness.config.code_fingerprint import ROOT
from harness.sweep.store import read_records

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
RUNS = "three_months"
WALLS = ("wall_begins", "wall_ends")
CLAIMED_FLOP = 1e28

Key = tuple[str, str, str, str]


def recorded() -> dict[Key, list[float]]:
    """Return the samples of each workload, variant, metric and method."""
    found: dict[Key, list[float]] = {}
    for record in read_records(ROOT / "results/reference/limits"):
        for one in record.measurements:
            key = (record.cell.workload, record.cell.optimization, one.metric, one.method)
            found.setdefault(key, []).extend(one.samples)
    return found


def power(value: float) -> str:
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def test_the_page_states_what_the_records_have() -> None:
    """Each wall of its first table, its band and each measured step, as the page writes them."""
    found = recorded()
    page = " ".join((ROOT / "docs/suites/limits.md").read_text().split())
    walls = [
        "| " + " | ".join(power(found[RUNS, name, wall, ""][0]) for wall in WALLS) + " |"
        for name in (
            "baseline",
            "larger_batch",
            "combined.wider_batch",
            "overlap",
            "combined.hidden_batch",
            "combined.hidden_wider_batch",
        )
    ]
    bands = [found[RUNS, "baseline", metric, "band"] for metric in WALLS]
    walls += ["| " + " | ".join(f"{power(min(ends))} to {power(max(ends))}" for ends in bands) + " |"]
    published = [key for key in found if key[1:] == ("baseline", "sequences", "published")]
    gate = [workload for workload, *_ in published if not workload.startswith("meta")]
    steps = [
        f"| {found[workload, 'baseline', 'sequences', 'published'][0]:,.0f} | "
        f"{found[workload, 'baseline', 'time', 'published'][0]:g} s |"
        for workload in gate
    ]
    assert len(gate) == 9
    assert not [one for one in (*walls, *steps) if one not in page]


def test_the_page_counts_the_combinations_that_reach_the_claim() -> None:
    """Runs of three months; without hidden communication each has a growing batch and larger nodes."""
    walls = {
        method: value[0]
        for (workload, _, metric, method), value in recorded().items()
        if (workload, metric) == ("combinations", "wall_begins") and "run_s=7.884e+06" in method
    }
    none, half = (
        {method: wall for method, wall in walls.items() if f"overlap={share}," in method}
        for share in ("0", "0.5")
    )
    reach, reach_half = ([m for m, wall in of.items() if wall >= CLAIMED_FLOP] for of in (none, half))
    assert not [m for m in reach if "batch_exponent=0," in m or "node_size=8," in m]
    page = " ".join((ROOT / "docs/suites/limits.md").read_text().split())
    assert f"in {len(reach)} of {len(none)} combinations" in page
    assert f"at {power(max(none.values()))} FLOP at most" in page
    assert f"{len(reach_half)} of {len(half)} combinations reach it" in page


def test_every_step_that_opens_the_page_is_predicted() -> None:
    """The page may predict larger runs only if each published step is within 15 %."""
    found = recorded()
    errors = [
        value
        for (workload, _, metric, method), (value, *_) in found.items()
        if (metric, method) == ("relative_error", "exposed") and not workload.startswith("meta")
    ]
    scaling = [value[0] for key, value in found.items() if key[2:] == ("scaling_error", "exposed")]
    assert max(abs(error) for error in (*errors, *scaling)) < 0.15
    hidden = [
        value[0]
        for key, value in found.items()
        if key[2:] == ("relative_error", "hidden") and not key[0].startswith("meta")
    ]
    assert len(hidden) == 9
    within = sum(abs(error) < 0.15 for error in hidden)
    first = (ROOT / "docs/suites/limits.md").read_text().partition("\n|")[0]
    assert f"{ {0: 'none', 1: 'one'}[within] } of nine" in " ".join(first.split())
