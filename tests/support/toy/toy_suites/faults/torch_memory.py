"""Takes memory the way a training step does."""

from dataclasses import dataclass

import torch

from harness.records import Reading


@dataclass
class Settings:
    size_B: int = 0


def apply(subject, settings):
    def work():
        subject["held"] = torch.zeros(settings.size_B, dtype=torch.uint8)
        return [Reading("held", "B", subject["held"].nbytes, "measured")]

    return subject | {"work": work}
