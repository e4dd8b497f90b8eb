"""The byte stage: which rules can have a finding in a file at all, by the words that its bytes hold."""

from __future__ import annotations

from collections.abc import Iterable

from amplint.rule import Rule


class Triggers:
    """The byte triggers of a set of rules. Each word is looked for at most once in a file."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)

    def candidates(self, data: bytes) -> list[Rule]:
        """The rules of which one alternative has all its words in `data`."""
        held: dict[bytes, bool] = {}

        def holds(word: bytes) -> bool:
            if word not in held:
                held[word] = word in data
            return held[word]

        return [rule for rule in self._rules if any(all(map(holds, words)) for words in rule.triggers)]
