"""When a technique is applied, and what it decides alone. Needs no torch."""

from enum import IntEnum, StrEnum


class Level(IntEnum):
    """The order in which techniques are applied, whatever the order of listing."""

    WORKLOAD = 0  # the batch, the optimizer
    MODEL = 1  # the attention kernel, types
    ACTIVATIONS = 2  # what happens to activations between forward and backward pass
    COMPILER = 3
    TENSOR_PARALLELISM = 4  # how ranks share each layer
    EXPERT_PARALLELISM = 5  # how ranks share each layer's experts
    CONTEXT_PARALLELISM = 6  # how ranks share each sequence
    PIPELINE_PARALLELISM = 7  # how ranks share the layers among them
    PARALLELISM = 8  # how ranks share the model
    COMMUNICATION = 9  # how the parallelism's messages are changed
    UPDATE = 10  # when parameters are updated


class Role(StrEnum):
    """What a technique may decide alone: of two techniques with one role a step has one."""

    ACTIVATIONS = "what becomes of activations"
    TENSOR_PARALLELISM = "how ranks share each layer"
    EXPERT_PARALLELISM = "how ranks share each layer's experts"
    CONTEXT_PARALLELISM = "how ranks share each sequence"
    PIPELINE_PARALLELISM = "how ranks share the layers among them"
    PARALLELISM = "how ranks share the model"
