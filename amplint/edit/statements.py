"""Inserting, removing and moving statements: suites on one line, semicolons, comments, indentation and newlines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from amplint.edit.layout import Layout, layout
from amplint.rule import Edit
from amplint.tree import Module

_BLANK = re.compile(r"[ \t\f]*(?:\r|\n|\Z)")


def insert_before(
    module: Module, statement: ast.stmt, lines: Sequence[str], *, above_comments: bool = True
) -> tuple[Edit, ...]:
    """Put `lines` before `statement`, at its indentation; levels within `lines` are four blanks, as in a template.

    Above the comment lines that lead the statement, unless told otherwise. Before an `elif` there is no place for a
    statement, so they go before its `if`.
    """
    place = layout(module)
    while place.is_elif(statement):
        statement = module.parents[statement]  # type: ignore[assignment]
    if place.starts_line(statement):
        at = place.leading_comments(statement) if above_comments else place.line_start(place.start(statement))
        indentation = place.indentation(statement)
        return (Edit(at, at, "".join(f"{place.indented(line, indentation)}{place.source.newline}" for line in lines)),)
    if _are_simple(lines):
        start = place.start(statement)
        return (Edit(start, start, "; ".join([*lines, ""])),)
    return _broken_up(place, statement, before=_rows(place, statement, lines))


def insert_after(module: Module, statement: ast.stmt, lines: Sequence[str]) -> tuple[Edit, ...]:
    """Put `lines` after `statement` and what belongs to it, at its indentation."""
    place = layout(module)
    if place.is_elif(statement):
        raise ValueError("nothing can stand between the branches of an `if`")
    if place.ends_line(statement) and not place.is_inline(statement):
        return (_block_after(place, statement, [place.indented(line, place.indentation(statement)) for line in lines]),)
    if _are_simple(lines):
        end = place.end(statement)
        return (Edit(end, end, "; ".join(["", *lines])),)
    return _broken_up(place, statement, after=_rows(place, statement, lines))


def remove_statement(module: Module, statement: ast.stmt) -> tuple[Edit, ...]:
    """Remove one statement with its line and the comment at its end; a block left empty gets `pass`."""
    return remove_statements(module, [statement])


def remove_statements(module: Module, statements: Iterable[ast.stmt]) -> tuple[Edit, ...]:
    """Remove statements, which may share blocks and lines; comment lines above them stay."""
    place, edits = layout(module), []
    removed = list(statements)
    gone = {id(statement) for statement in removed}
    blocks = {id(block): block for statement in removed for block in [module.block(statement)]}
    for block in blocks.values():
        whole = all(id(item) in gone for item in block) and not isinstance(module.parent(block[0]), ast.Module)
        for line in _lines(place, block):
            edits += _removed_from_line(place, line, gone, keep_line=whole and line[0] is block[0])
    return tuple(_merged(sorted(edits)))


def move_before(module: Module, statements: Sequence[ast.stmt], target: ast.stmt) -> tuple[Edit, ...]:
    """Move statements, with the comment lines that lead them, before `target`, at its indentation."""
    place = layout(module)
    there: tuple[Edit, ...]
    if place.starts_line(target):
        at = place.leading_comments(target)
        there = (Edit(at, at, _carried(place, statements, place.indentation(target))),)
    elif _share_a_line(statements):
        start = place.start(target)
        there = (Edit(start, start, "; ".join([*_texts(place, statements), ""])),)
    else:
        there = _broken_up(place, target, before=_carried(place, statements, _own_indentation(place, target)))
    return (*there, *_taken_away(place, statements, there))


def move_after(module: Module, statements: Sequence[ast.stmt], target: ast.stmt) -> tuple[Edit, ...]:
    """Move statements, with the comment lines that lead them, after `target`, at its indentation."""
    place = layout(module)
    there: tuple[Edit, ...]
    if place.ends_line(target) and not place.is_inline(target):
        text = _carried(place, statements, place.indentation(target))
        there = (_block_after(place, target, [text.removesuffix(place.source.newline)]),)
    elif _share_a_line(statements):
        end = place.end(target)
        there = (Edit(end, end, "; ".join(["", *_texts(place, statements)])),)
    else:
        there = _broken_up(place, target, after=_carried(place, statements, _own_indentation(place, target)))
    return (*there, *_taken_away(place, statements, there))


def nest(module: Module, statements: Sequence[ast.stmt], header: str) -> tuple[Edit, ...]:
    """Put neighbouring statements under a new `header` (`if scaler is not None:`), one level deeper.

    Of statements that share their line with others, only those of the first one's line can be taken.
    """
    place = layout(module)
    first, last = statements[0], statements[-1]
    indentation = place.indentation(first)
    if not place.starts_line(first) or not place.ends_line(last):
        return _broken_up(place, first, before=_rows(place, first, [header]), deeper=statements)
    start = place.leading_comments(first)
    edits = [Edit(start, start, f"{indentation}{header}{place.source.newline}")]
    edits += [Edit(at, at, place.unit) for at in _code_lines(place, start, place.end(last))]
    return tuple(edits)


def _are_simple(lines: Sequence[str]) -> bool:
    """Whether `lines` are simple statements, which may share a line with others."""
    return not any(line.startswith((" ", "\t", "#", "@")) or line.endswith(":") or "\n" in line for line in lines)


def _block_after(place: Layout, statement: ast.stmt, lines: Sequence[str]) -> Edit:
    """Whole, indented lines after the line that `statement` ends on, and after comments of its own inner block."""
    newline = place.source.newline
    at = place.line_end(place.end(statement))
    if isinstance(getattr(statement, "body", None), list):
        at = _after_inner_comments(place, at, len(place.indentation(statement).expandtabs(8)))
    after = place.after_newline(at)
    if after == at:  # no newline at the end of the file
        return Edit(at, at, "".join(f"{newline}{line}" for line in lines))
    return Edit(after, after, "".join(f"{line}{newline}" for line in lines))


def _after_inner_comments(place: Layout, line_end: int, column: int) -> int:
    """The end of the last comment line right below `line_end` that is indented deeper than `column`."""
    best = line_end
    while (start := place.after_newline(line_end)) != line_end:
        line_end = place.line_end(start)
        text = place.text[start:line_end].expandtabs(8)
        if not text.strip():
            continue
        if not text.lstrip().startswith("#") or len(text) - len(text.lstrip()) <= column:
            break
        best = line_end
    return best


def _lines(place: Layout, block: Sequence[ast.stmt]) -> list[list[ast.stmt]]:
    """The statements of a block, grouped by the line of code that they stand on."""
    groups: list[list[ast.stmt]] = []
    for statement in block:
        if groups and not place.starts_line(statement):
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return groups


def _removed_from_line(place: Layout, line: list[ast.stmt], gone: set[int], *, keep_line: bool) -> list[Edit]:
    removed = [statement for statement in line if id(statement) in gone]
    if not removed:
        return []
    if len(removed) == len(line):
        start, end = place.start(line[0]), place.end(line[-1])
        if keep_line or not place.starts_line(line[0]):
            return [Edit(start, place.line_end(end), "pass")]
        return [_whole_lines(place, start, end)]
    edits, survivor = [], False
    for index, statement in enumerate(line):
        if id(statement) not in gone:
            survivor = True
        elif survivor:
            edits.append(Edit(place.end(line[index - 1]), place.end(statement), ""))
        else:
            edits.append(Edit(place.start(statement), place.start(line[index + 1]), ""))
    return edits


def _whole_lines(place: Layout, start: int, end: int) -> Edit:
    """Delete the lines from `start` to `end`; a file without a final newline stays without one."""
    start, line_end = place.line_start(start), place.line_end(end)
    after = place.after_newline(line_end)
    if after == line_end and start > 0:
        start -= 2 if place.text.endswith("\r\n", 0, start) else 1
    return Edit(start, after, "")


def _merged(edits: list[Edit]) -> list[Edit]:
    """Sorted deletions with overlapping ones made one: two last lines both take the newline between them."""
    merged: list[Edit] = []
    for edit in edits:
        if merged and edit.start < merged[-1].end:
            edit = Edit(merged[-1].start, max(edit.end, merged[-1].end), "")
            merged.pop()
        merged.append(edit)
    return merged


def _taken_away(place: Layout, statements: Sequence[ast.stmt], there: Sequence[Edit]) -> tuple[Edit, ...]:
    """Remove statements that went elsewhere (`there`), with the comment lines that lead them."""
    edits = list(remove_statements(place.module, statements))
    for statement in statements:
        comments, start = place.leading_comments(statement), place.line_start(place.start(statement))
        if comments < start and _alone_on_line(place, statement):
            edits.append(Edit(comments, start, ""))
    inserted = {edit.start for edit in there}
    return tuple(_keeping(edit, inserted) for edit in _merged(sorted(edits)))


def _keeping(deletion: Edit, inserted: set[int]) -> Edit:
    """A deletion that leaves the newline before it where something was put right after that."""
    within = [at for at in inserted if deletion.start < at < deletion.end]
    return Edit(max(within), deletion.end, deletion.text) if within else deletion


def _alone_on_line(place: Layout, statement: ast.stmt) -> bool:
    return place.starts_line(statement) and place.ends_line(statement)


def _carried(place: Layout, statements: Sequence[ast.stmt], indentation: str) -> str:
    """The whole lines of `statements` as they read under `indentation`: comments and strings kept."""
    parts = []
    for statement in statements:
        own = place.indentation(statement)
        if not _alone_on_line(place, statement):
            parts.append(indentation + place.text[place.start(statement) : place.end(statement)])
            continue
        start, end = place.leading_comments(statement), place.line_end(place.end(statement))
        text, done = "", start
        for at in _code_lines(place, start, end):
            if place.text.startswith(own, at):
                text += place.text[done:at] + indentation
                done = at + len(own)
        parts.append(text + place.text[done:end])
    return "".join(part + place.source.newline for part in parts)


def _code_lines(place: Layout, start: int, end: int) -> list[int]:
    """The starts of the lines from `start` on that hold something and do not begin inside a string."""
    starts = [start, *place.lines(start, end)]
    return [at for at in sorted(starts) if not _BLANK.match(place.text, at)]


def _texts(place: Layout, statements: Sequence[ast.stmt]) -> list[str]:
    return [place.text[place.start(statement) : place.end(statement)] for statement in statements]


def _share_a_line(statements: Sequence[ast.stmt]) -> bool:
    """Whether the statements can stand on one line: no block among them."""
    return not any(hasattr(statement, "body") or isinstance(statement, ast.Match) for statement in statements)


def _own_indentation(place: Layout, statement: ast.stmt) -> str:
    """The indentation of a statement that shares its line, once it has a line of its own."""
    return place.indentation(statement) + (place.unit if place.is_inline(statement) else "")


def _rows(place: Layout, statement: ast.stmt, lines: Sequence[str]) -> str:
    """`lines` as whole lines at the indentation that the statement gets when its line is broken up."""
    indentation = _own_indentation(place, statement)
    return "".join(f"{place.indented(line, indentation)}{place.source.newline}" for line in lines)


def _broken_up(
    place: Layout, statement: ast.stmt, *, before: str = "", after: str = "", deeper: Sequence[ast.stmt] = ()
) -> tuple[Edit, ...]:
    """Put each statement of the line that `statement` shares on a line of its own, with whole lines around that one.

    `deeper`: the statements of that line that go one level deeper.
    """
    newline = place.source.newline
    line = next(group for group in _lines(place, place.module.block(statement)) if statement in group)
    indentation = _own_indentation(place, statement)
    edits = []
    for index, item in enumerate(line):
        text = (before if item is statement else "") + indentation + (place.unit if item in deeper else "")
        start = place.start(item)
        if index or not place.starts_line(item):
            left = place.end(line[index - 1]) if index else place.previous_char(start) + 1
            edits.append(Edit(left, start, newline + text))
        else:
            edits.append(Edit(place.line_start(start), start, text))
        if item is statement and after:
            end = place.end(item) if item is not line[-1] else place.line_end(place.end(item))
            edits.append(Edit(end, end, newline + after.removesuffix(newline)))
    return tuple(edits)
