"""Finds the rules: amplint's own, those in the package `amplint.rules`, and those of installed plug-ins."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType

from amplint.own_rules import OWN_RULES
from amplint.rule import Rule

ENTRY_POINTS = "amplint.rules"
_CODE = re.compile(r"[A-Z]+[0-9]{3,}")


class RegistryError(Exception):
    """A rule module or plug-in that cannot be used."""


class UnknownSelectorError(ValueError):
    """A selector that names no rule; `nearest` is the one that was probably meant."""

    def __init__(self, selector: str, nearest: str | None) -> None:
        hint = f"; did you mean {nearest}?" if nearest else ""
        super().__init__(f"no rule has the code, prefix or name {selector!r}{hint}")
        self.selector = selector
        self.nearest = nearest


@cache
def all_rules() -> tuple[Rule, ...]:
    """One instance of every rule, sorted by code. Raises RegistryError for a plug-in that is broken."""
    rules: dict[str, Rule] = {}
    for cls in (*OWN_RULES, *_packaged(), *_plugged_in()):
        if cls.code in rules and type(rules[cls.code]) is not cls:
            raise RegistryError(f"two rules have the code {cls.code}: {type(rules[cls.code]).__name__}, {cls.__name__}")
        rules[cls.code] = cls()
    return tuple(rules[code] for code in sorted(rules))


def find(selector: str) -> Rule:
    """The one rule of this code or name, in any case. Raises UnknownSelectorError."""
    wanted = selector.strip().casefold()
    for rule in all_rules():
        if wanted in (rule.code.casefold(), rule.name):
            return rule
    raise UnknownSelectorError(selector, _nearest(wanted))


def matching(selector: str) -> frozenset[str]:
    """The codes that a selector stands for: `ALL`, a code, a prefix of codes (`AMP2`), or a name.

    Raises UnknownSelectorError if there are none.
    """
    wanted = selector.strip().casefold()
    if wanted == "all":
        return frozenset(rule.code for rule in all_rules())
    codes = frozenset(r.code for r in all_rules() if wanted and matches(wanted, r))
    if not codes:
        raise UnknownSelectorError(selector, _nearest(wanted))
    return codes


def matches(selector: str, rule: Rule) -> bool:
    """Whether a code, prefix of codes or name stands for `rule`."""
    wanted = selector.casefold()
    return wanted == rule.name or rule.code.casefold().startswith(wanted)


def selection(select: Iterable[str], ignore: Iterable[str], extend: Iterable[str]) -> frozenset[str]:
    """The codes that run: those selected (default: all that are on by default) and extended, less those ignored.

    A more specific selector wins over a less specific one, so that `select = AMP2, ignore = AMP` keeps AMP2, and
    `ALL` gives way to anything; of two equally specific ones, ignore wins. What amplint could not read or finish is
    always reported, unless it is ignored.
    """
    selected = list(select)
    chosen = {r.code: 0 for r in all_rules() if (not selected and r.default) or r.code in ("AMP000", "AMP001")}
    for selector in (*selected, *extend):
        for code in matching(selector):
            chosen[code] = max(chosen.get(code, 0), _specificity(selector))
    for selector in ignore:
        for code in matching(selector):
            if chosen.get(code, -1) <= _specificity(selector):
                chosen.pop(code, None)
    return frozenset(chosen)


def _specificity(selector: str) -> int:
    if selector.strip().casefold() == "all":
        return 0
    return 99 if "-" in selector else len(selector.strip())


def _nearest(wanted: str) -> str | None:
    import difflib

    spellings = {s.casefold(): s for rule in all_rules() for s in (rule.code, rule.name)}
    close = difflib.get_close_matches(wanted, spellings, n=1)
    return spellings[close[0]] if close else None


def _packaged() -> Iterator[type[Rule]]:
    package = importlib.import_module("amplint.rules")
    for info in pkgutil.iter_modules(package.__path__):
        try:
            module = importlib.import_module(f"{package.__name__}.{info.name}")
        except ImportError as error:
            raise RegistryError(f"the rules of {info.name} cannot be loaded: {error}") from error
        yield from _rules_of(module)


def _plugged_in() -> Iterator[type[Rule]]:
    """The rules of installed distributions: entry points that name a Rule subclass, or a module of them."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            loaded = entry.load()
        except Exception as error:
            raise RegistryError(f"the plug-in {entry.value!r} cannot be loaded: {error}") from error
        found = list(_rules_of(loaded)) if isinstance(loaded, ModuleType) else [loaded]
        for cls in found:
            if not (inspect.isclass(cls) and issubclass(cls, Rule)):
                raise RegistryError(f"the plug-in {entry.value!r} is no subclass of amplint.rule.Rule")
            if not _CODE.fullmatch(getattr(cls, "code", "")):
                raise RegistryError(f"the plug-in {entry.value!r} has no code of the form ABC123")
            yield cls


def _rules_of(module: ModuleType) -> Iterator[type[Rule]]:
    """The rules that a module defines (not those it imports)."""
    for value in vars(module).values():
        if not (inspect.isclass(value) and issubclass(value, Rule)):
            continue
        if value.__module__ == module.__name__ and "code" in vars(value):
            yield value
