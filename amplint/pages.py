"""The page of a rule, made from the rule itself: docstring, severity, fix, examples."""

from __future__ import annotations

import inspect

from amplint.rule import Rule

_FIX = {
    "safe": "always safe",
    "unsafe": "unsafe (needs `--unsafe-fixes`)",
    "safe/unsafe": "safe or unsafe (then needs `--unsafe-fixes`)",
    "": "none",
}


def page(rule: Rule) -> str:
    """The Markdown page of a rule."""
    default = "on" if rule.default else "off"
    facts = f"**Severity** {rule.severity} · **Fix** {fixability(rule)} · **Default** {default}"
    return f"# {rule.code} {rule.name}\n\n{facts}\n\n{inspect.getdoc(type(rule)) or rule.summary}\n"


def fixability(rule: Rule) -> str:
    """What sort of fix a rule offers, in words."""
    return _FIX.get(rule.fixable, rule.fixable)
