"""The byte stage: which rules can have a finding in a file at all, by the words that its bytes hold."""

from __future__ import annotations

import re
from collections.abc import Iterable

from amplint.rule import Rule, Trigger

_OTHER_LIBRARIES = ("math", "np", "numpy")


class Triggers:
    """The byte triggers of a set of rules. Each is looked for at most once in a file."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)

    def candidates(self, data: bytes) -> list[Rule]:
        """The rules of which one alternative has all its triggers in `data`."""
        held: dict[Trigger, bool] = {}

        def holds(trigger: Trigger) -> bool:
            if trigger not in held:
                found = trigger in data if isinstance(trigger, bytes) else trigger.search(data)
                held[trigger] = bool(found)
            return held[trigger]

        return [rule for rule in self._rules if any(all(map(holds, triggers)) for triggers in rule.triggers)]


def attribute(spelled: str) -> re.Pattern[bytes]:
    """An attribute, or its name in a string: `grad` of `p.grad` and `getattr(p, "grad")`, not of `no_grad`."""
    return re.compile(rf"{spelled}(?<=[.\"']{spelled})(?!\w)".encode())


def call(spelled: str, *endings: str) -> re.Pattern[bytes]:
    """Where something of a name, with or without one of the endings, may be called or read: `torch.exp(x)`, `x.exp_()`,
    `safe_exp (x)`, `from torch import exp as e`; not `expand(x)`, nor `math.exp(x)`.

    A pattern that begins with plain letters is looked for nearly as fast as plain bytes.
    """
    ending = rf"(?:{'|'.join(endings)})?_?(?!\w)"
    return re.compile(
        (
            rf"{spelled}(?:(?<![A-Za-z]{spelled})|(?<=\\[nt]{spelled}))"  # a notebook's \n is no letter before a name
            + "".join(rf"(?<!\b{library}\.{spelled})" for library in _OTHER_LIBRARIES)
            + rf"(?:(?<=\.{spelled}){ending}|{ending}(?= ?\(| as ))"
        ).encode()
    )
