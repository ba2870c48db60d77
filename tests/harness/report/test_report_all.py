"""The terminal, a suite without a report of its own, the tidy table."""

from synthetic import made

from harness.report import gather
from harness.report.findings import what_pays


def test_the_first_answer_of_such_a_report_names_each_metric_that_it_judges(tmp_path):
    values = {"baseline": (100.0, 0.5), "fast": (120.0, 0.1), "faster": (150.0, 0.2), "slow": (80.0, 0.6)}
    records = [
        made(
            "w",
            variant,
            {("rate", ""): ("token/s", "measured", (rate,)), ("pad", ""): ("1", "measured", (pad,))},
        )
        for variant, (rate, pad) in values.items()
    ]
    told = [what_pays(gather("unheard_of", some, [], tmp_path)) for some in (records, records[:1])]
    assert told == [
        [
            "Rate: faster +50 %, and 1 more pays.",
            "Pad: up to −80 % (fast), not judged, since its unit does not say whether less is better.",
        ],
        ["Rate: No variant could be compared with the baseline."],
    ]
