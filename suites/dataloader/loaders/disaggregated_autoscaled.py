"""The disaggregated loader, balanced, with as many source loaders as its steps need."""

from suites.dataloader.batch import Subject
from suites.dataloader.loaders.disaggregated_balanced import FORMATS as FORMATS
from suites.dataloader.loaders.disaggregated_balanced import NEEDS_RAY as NEEDS_RAY
from suites.dataloader.loaders.disaggregated_balanced import apply as balanced

MOST_LOADERS = 4


def apply(subject: Subject) -> Subject:
    """Return the balanced subject with 1 to 4 source loaders."""
    one = balanced(subject)
    return one.changed(options={**one.options, "most_loaders": MOST_LOADERS})
