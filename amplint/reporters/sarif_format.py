"""SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from amplint import __version__
from amplint.diagnostic import Diagnostic
from amplint.fingerprint import fingerprints
from amplint.pages import page
from amplint.registry import all_rules
from amplint.reporters import Report, printable, url
from amplint.rule import Position, Rule, Severity

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "SRCROOT"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(report: Report) -> str:
    """One run with the rules that were met, the results, their fixes and fingerprints."""
    met = {d.finding.code for d in report.diagnostics}
    rules = [rule for rule in all_rules() if rule.code in met]
    index = {rule.code: number for number, rule in enumerate(rules)}
    prints = fingerprints(report.diagnostics, report.shown)
    run = {
        "tool": {"driver": {"name": "amplint", "version": __version__, "rules": [_rule(rule) for rule in rules]}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": f"file://{_quoted(report.base)}/"}},
        "results": [
            _result(report, diagnostic, index, mark)
            for diagnostic, mark in zip(report.diagnostics, prints, strict=True)
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.summary},
        "help": {"text": page(rule), "markdown": page(rule)},
        "helpUri": url(rule.code),
        "defaultConfiguration": {"level": _LEVELS[rule.severity], "enabled": rule.default},
    }


def _result(report: Report, diagnostic: Diagnostic, index: dict[str, int], mark: str) -> dict[str, Any]:
    finding = diagnostic.finding
    region = _region(diagnostic.start, diagnostic.end)
    if diagnostic.cell is not None:
        region = {"startLine": 1}
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": _LEVELS[finding.severity],
        "message": {"text": printable(report.message(diagnostic))},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(report, finding.path), "region": region}}],
        "partialFingerprints": {"amplint/v1": mark},
    }
    if finding.related:
        result["relatedLocations"] = [
            {
                "message": {"text": printable(related.message)},
                "physicalLocation": {
                    "artifactLocation": _artifact(report, related.path),
                    "region": {"startLine": related.start.line, "startColumn": related.start.column},
                },
            }
            for related in finding.related
        ]
    if finding.fix and diagnostic.cell is None:
        result["fixes"] = [_fix(report, diagnostic)]
    return result


def _fix(report: Report, diagnostic: Diagnostic) -> dict[str, Any]:
    fix = diagnostic.finding.fix
    assert fix is not None
    replacements = [
        {"deletedRegion": _region(edit.start, edit.end), "insertedContent": {"text": edit.text}}
        for edit in diagnostic.edits
    ]
    return {
        "description": {"text": printable(f"{fix.message} ({fix.safety})")},
        "artifactChanges": [
            {"artifactLocation": _artifact(report, diagnostic.finding.path), "replacements": replacements}
        ],
    }


def _artifact(report: Report, path: Path) -> dict[str, str]:
    """Relative to the source root where it lies under it; percent-encoded, so no control character is left."""
    if path.is_relative_to(report.base):
        return {"uri": _quoted(path.relative_to(report.base)), "uriBaseId": ROOT}
    return {"uri": f"file://{_quoted(path)}"}


def _quoted(path: Path) -> str:
    return quote_from_bytes(path.as_posix().encode("utf-8", "surrogateescape"))


def _region(start: Position, end: Position) -> dict[str, int]:
    return {
        "startLine": start.line,
        "startColumn": start.column,
        "endLine": end.line,
        "endColumn": end.column,
    }
