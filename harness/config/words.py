"""KEY=VALUE, as it stands in the words of every command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def parts(word: str) -> tuple[str, str | None]:
    """Return the key of a word and its value, which is None where the word has no `=`."""
    key, equals, value = word.partition("=")
    return key, value if equals else None


def by_key(words: Iterable[str]) -> Mapping[str, str]:
    """Return the values of the words KEY=VALUE; of a key that is given twice the last."""
    given = map(parts, words)
    return {key: value for key, value in given if value is not None}
