"""What identifies a finding when lines move: its rule, its file and the text of its line."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from amplint.diagnostic import Diagnostic


def fingerprints(diagnostics: Iterable[Diagnostic], shown: Callable[[Path], str]) -> list[str]:
    """One hexadecimal fingerprint each. Equal lines of one file are told apart by their order."""
    seen: Counter[str] = Counter()
    result = []
    for diagnostic in diagnostics:
        line = " ".join(diagnostic.line.split())
        key = "\0".join((diagnostic.finding.code, shown(diagnostic.finding.path), line))
        seen[key] += 1
        text = f"{key}\0{seen[key]}"
        result.append(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32])
    return result
