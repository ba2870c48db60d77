"""Keep values of unlike machines apart before anything is pooled: records -> those of one machine. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.records import Record, Status
from harness.units import counted


def of_one_machine(records: Sequence[Record]) -> tuple[list[Record], tuple[str, ...]]:
    """Return the records whose values may be pooled, and a sentence on each workload that had others.

    Machines are alike with the same hardware and library versions. Of each workload, the machine counts that
    has most of its records with values; of several, the first. Records without values stay, since they say
    how a cell ended; but a wrong result elsewhere is no verdict on this machine and its libraries.
    """
    counts: dict[str, Counter[str]] = {}
    for record in records:
        if record.measurements:
            counts.setdefault(record.cell.workload, Counter())[record.machine] += 1
    chosen = {workload: of.most_common(1)[0][0] for workload, of in counts.items()}
    kept, left_out = list[Record](), Counter[str]()
    for record in records:
        counts_anywhere = not record.measurements and record.status != Status.WRONG_RESULT
        if counts_anywhere or record.machine == chosen.get(record.cell.workload, record.machine):
            kept.append(record)
        else:
            left_out[record.cell.workload] += 1
    sentences = tuple(
        f"{workload}: left out {counted(left_out[workload], 'cell')} of other machines or libraries, whose "
        "values are not pooled with these"
        for workload in counts
        if left_out[workload]
    )
    return kept, sentences
