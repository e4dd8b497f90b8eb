"""Applying fixes: order, overlap, re-reading to a fixpoint, and writing the file so that it is never half there."""

from __future__ import annotations

from collections.abc import Iterable

from amplint.rule import Edit


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """`text` with `edits` made. They must not overlap; insertions at one place keep their order."""
    parts, done = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < done:
            raise ValueError(f"overlapping edits at {edit.start}")
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:]])
