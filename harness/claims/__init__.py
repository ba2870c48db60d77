"""The paper's claims, their verdicts on records, and one answer each. Pure."""
