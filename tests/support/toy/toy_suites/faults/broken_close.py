"""Fails in close(), after its readings, and before that too where told so."""

from dataclasses import dataclass


@dataclass
class Settings:
    first: bool = False


class Trap(dict):
    def __getitem__(self, key):
        if self.get("armed"):
            raise OSError("cannot be closed")
        return super().__getitem__(key)


def apply(subject, settings):
    subject = Trap(subject)

    def work():
        subject["armed"] = True
        if settings.first:
            raise ValueError("the first failure")

    subject["work"] = work
    return subject
