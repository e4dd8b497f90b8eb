"""`amplint rules`: the catalogue as a table, as JSON or as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from amplint.commands.common import Failure, write

if TYPE_CHECKING:
    from amplint.rule import Rule


@click.command("rules", short_help="List the rules.")
@click.option("--output-format", type=click.Choice(("text", "json", "markdown")), default="text", show_default=True)
def command(output_format: str) -> None:
    """List all rules, those of plug-ins included."""
    from amplint.registry import RegistryError, all_rules

    try:
        write(_RENDER[output_format](all_rules()))
    except RegistryError as error:
        raise Failure(str(error)) from None


def _text(rules: tuple[Rule, ...]) -> str:
    width = max(len(rule.name) for rule in rules)
    rows = [_HEAD, *map(_row, rules)]
    lines = [
        f"{code:6}  {name:{width}}  {level:8}  {on:3}  {fix:11}  {what}" for code, name, level, on, fix, what in rows
    ]
    return "\n".join(lines) + "\n"


def _json(rules: tuple[Rule, ...]) -> str:
    import json

    from amplint.pages import page
    from amplint.reporters import url

    records = [
        {
            "code": rule.code,
            "name": rule.name,
            "severity": str(rule.severity),
            "summary": rule.summary,
            "default": rule.default,
            "fix": rule.fixable or None,
            "explanation": page(rule),
            "url": url(rule.code),
        }
        for rule in rules
    ]
    return json.dumps(records, indent=2) + "\n"


def _markdown(rules: tuple[Rule, ...]) -> str:
    rows = [_HEAD, ("---",) * len(_HEAD), *map(_row, rules)]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in rows)


def _row(rule: Rule) -> tuple[str, ...]:
    on = "yes" if rule.default else "no"
    return rule.code, rule.name, str(rule.severity), on, rule.fixable or "-", rule.summary


_HEAD = ("code", "name", "severity", "on", "fix", "what it finds")
_RENDER = {"text": _text, "json": _json, "markdown": _markdown}
