"""Cannot run here, and says so before anything is built."""

from dataclasses import dataclass


@dataclass
class Settings:
    pass


def unavailable(host):
    return f"needs a GPU; this host has {host.device} with {host.cores} cores"


def apply(subject, settings):
    raise AssertionError("never reached")
