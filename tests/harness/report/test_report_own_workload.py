"""A workload of the user's own is in every table and figure of its suite."""

import pytest

from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import workloads_of
from harness.config.run import names
from harness.report import gather
from harness.report.spec import EffectsBlock, TableBlock
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference"


@pytest.mark.parametrize("suite", names("suite"))
def test_it_is_wherever_a_workload_of_the_suite_is(suite):
    """A workload of a committed run is given a name that the suite does not have."""
    if not (REFERENCE / suite).is_dir():
        pytest.skip(f"no run of {suite} is committed")
    kept = [record for record in read_records(REFERENCE / suite) if record.cell.suite == suite]
    usual = kept[0].cell.workload
    assert usual in workloads_of(suite)
    mine = [
        record._replace(cell=record.cell._replace(workload="mine"))
        for record in kept
        if record.cell.workload == usual
    ]
    data = gather(suite, [*kept, *mine], [], REFERENCE / suite)
    where = {block.id: block.where for block in data.blocks}
    shown = {block: data.index.names("workload", chosen) for block, chosen in where.items()}
    assert {block for block, workloads in shown.items() if usual in workloads} <= {
        block for block, workloads in shown.items() if workloads[:1] == ["mine"]
    }
    assert any("mine" in workloads for workloads in shown.values())


def test_one_workload_that_a_block_prefers_gives_way_to_it():
    kept = read_records(REFERENCE / "kernels")
    step = [one for one in kept if one.cell.workload == "step_5m_128"]
    mine = [one._replace(cell=one.cell._replace(workload="mine")) for one in step]
    data = gather("kernels", [*kept, *mine], [], REFERENCE / "kernels")
    effects = next(block for block in data.blocks if isinstance(block, EffectsBlock))
    assert "mine" in effects.title
    assert effects.where["workload"] == "mine"


def test_alone_it_is_in_each_table_once_and_in_no_figure_over_sizes():
    kept = [one for one in read_records(REFERENCE / "congestion") if one.cell.workload == "incast_16"]
    mine = [one._replace(cell=one.cell._replace(workload="mine")) for one in kept]
    data = gather("congestion", mine, [], REFERENCE / "congestion")
    titles = [block.title for block in data.blocks if isinstance(block, TableBlock)]
    assert "Queue and pauses: mine" in titles
    assert len(titles) == len(set(titles))
    drawn = {block.id for block in data.blocks if data.figure(block)}
    assert "trade_off" in drawn
    assert "lines" not in drawn
