"""As long as it says, whatever it is told to do."""

from dataclasses import dataclass


@dataclass
class Settings:
    time_s: float = 1.0
    act: str = ""
    at: int = 0


def apply(subject, settings):
    return {**subject, "time_s": settings.time_s, "act": settings.act, "at": settings.at}
