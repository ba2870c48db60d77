"""The disaggregated loader, with documents assigned to groups so that their steps take equally long."""

from suites.dataloader.batch import Subject
from suites.dataloader.loaders.disaggregated import FORMATS as FORMATS
from suites.dataloader.loaders.disaggregated import NEEDS_RAY as NEEDS_RAY
from suites.dataloader.measured.fed_flop import flop_of_model


def apply(subject: Subject) -> Subject:
    """Return the subject with documents assigned by their FLOP, the largest first."""
    model = subject.workload
    flop = flop_of_model(model.hidden_size, model.num_hidden_layers, model.num_attention_heads)
    balance = ["greedy", flop.linear, flop.quadratic]
    return subject.changed(loader="disaggregated", options={**subject.options, "balance": balance})
