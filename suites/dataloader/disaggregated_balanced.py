"""The disaggregated loader, with documents assigned to groups so that their steps take equally long."""

from suites.dataloader.batch import END
from suites.dataloader.disaggregated import FORMATS as FORMATS
from suites.dataloader.disaggregated import NEEDS_RAY as NEEDS_RAY
from suites.dataloader.subject import Subject
from suites.training.balance import flop_of_document


def apply(subject: Subject) -> Subject:
    """Return the subject with documents assigned by their FLOP, the largest first."""
    model = subject.workload
    flop = flop_of_document(
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        intermediate_size=4 * model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_attention_heads,
        vocab_size=END + 1,
        mlp_matrices=2,
    )
    balance = ["greedy", flop.linear, flop.quadratic]
    return subject.changed(loader="disaggregated", options={**subject.options, "balance": balance})
