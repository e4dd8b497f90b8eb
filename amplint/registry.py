"""Finds the rules: amplint's own, those in the package `amplint.rules`, and those of installed plug-ins.

What a run selects is read off the names of the rules' files: they are imported once there is something to judge.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import NamedTuple

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


class Entry(NamedTuple):
    """A rule in the list of all; `default`: it runs unless it is left out."""

    code: str
    name: str
    default: bool


@cache
def catalogue() -> tuple[Entry, ...]:
    """All rules, sorted by code. Raises RegistryError for a plug-in that is broken."""
    package = importlib.import_module("amplint.rules")
    entries = [_entry(info.name, package.ON_REQUEST) for info in pkgutil.iter_modules(package.__path__)]
    entries += [Entry(cls.code, cls.name, cls.default) for cls in (*OWN_RULES, *_plugged_in())]
    by_code: dict[str, Entry] = {}
    for entry in entries:
        if by_code.setdefault(entry.code, entry) != entry:
            raise RegistryError(f"two rules have the code {entry.code}: {by_code[entry.code].name}, {entry.name}")
    return tuple(by_code[code] for code in sorted(by_code))


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
        return frozenset(entry.code for entry in catalogue())
    codes = frozenset(entry.code for entry in catalogue() if wanted and matches(wanted, entry))
    if not codes:
        raise UnknownSelectorError(selector, _nearest(wanted))
    return codes


def matches(selector: str, rule: Rule | Entry) -> bool:
    """Whether a code, prefix of codes or name stands for a rule."""
    wanted = selector.casefold()
    return wanted == rule.name or rule.code.casefold().startswith(wanted)


def selection(select: Iterable[str], ignore: Iterable[str], extend: Iterable[str]) -> frozenset[str]:
    """The codes that run: those selected (default: all that are on by default) and extended, less those ignored.

    A more specific selector wins over a less specific one, so that `select = AMP2, ignore = AMP` keeps AMP2, and
    `ALL` gives way to anything; of two equally specific ones, ignore wins. What amplint could not read or finish is
    always reported, unless it is ignored.
    """
    selected = list(select)
    chosen = {r.code: 0 for r in catalogue() if (not selected and r.default) or r.code in ("AMP000", "AMP001")}
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

    spellings = {s.casefold(): s for entry in catalogue() for s in (entry.code, entry.name)}
    close = difflib.get_close_matches(wanted, spellings, n=1)
    return spellings[close[0]] if close else None


def _entry(module: str, on_request: Iterable[str]) -> Entry:
    """The rule in a module of the package: `amp101_log_softmax` holds AMP101, log-softmax."""
    code, _, name = module.partition("_")
    return Entry(code.upper(), name.replace("_", "-"), code.upper() not in on_request)


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
    if not any(map(_may_hold_plug_ins, sys.path)):
        return
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


def _may_hold_plug_ins(folder: str) -> bool:
    """Whether a distribution in a folder of `sys.path` names our entry points; importing `importlib.metadata` to find
    that there is none takes as long as all else before a run."""
    try:
        names = [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info", ".egg"))]
    except NotADirectoryError:
        return True  # an archive
    except OSError:
        return False
    return any(_names_entry_points(os.path.join(folder, name)) for name in names)


def _names_entry_points(distribution: str) -> bool:
    if distribution.endswith(".egg"):
        return True
    try:
        with open(os.path.join(distribution, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
            return ENTRY_POINTS in file.read()
    except OSError:
        return False


def _rules_of(module: ModuleType) -> Iterator[type[Rule]]:
    """The rules that a module defines (not those it imports)."""
    for value in vars(module).values():
        if not (inspect.isclass(value) and issubclass(value, Rule)):
            continue
        if value.__module__ == module.__name__ and "code" in vars(value):
            yield value
