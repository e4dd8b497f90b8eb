"""Applying fixes to a fixpoint, and writing so that the file is whole whatever happens."""

from __future__ import annotations

import ast
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplint.fix import FixError, Mending, fix_source, write
from amplint.rule import Edit, Finding, Fix, Position, Safety, Severity
from amplint.source import Source, apply_edits

AT = Position(1, 1)


def finding(*edits: Edit, code: str = "AMP101", safety: Safety = Safety.SAFE) -> Finding:
    return Finding(Path("a.py"), AT, AT, code, "name", Severity.ERROR, "message", Fix("mend", safety, edits))


def rewriting(pattern: str, replacement: str, safety: Safety = Safety.SAFE) -> Callable[[Source], list[Finding]]:
    """A check that finds every match of `pattern`, nested ones too, and rewrites it."""

    def find(source: Source) -> list[Finding]:
        return [
            finding(Edit(m.start(), m.start() + len(m[1]), m.expand(replacement)), safety=safety)
            for m in re.finditer(f"(?=({pattern}))", source.text)
        ]

    return find


def source_of(text: str, path: Path = Path("a.py")) -> Source:
    return Source(path, text)


# -- to a fixpoint ---------------------------------------------------------------------------------------------------


def test_edits_are_made_in_order() -> None:
    edits = [Edit(4, 5, "Y"), Edit(0, 0, "a"), Edit(0, 0, "b"), Edit(0, 1, "X"), Edit(5, 5, "!")]
    assert apply_edits("x = y", edits) == "abX = Y!"


def test_overlapping_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="overlapping"):
        apply_edits("abcdef", [Edit(0, 3, ""), Edit(2, 4, "")])


def test_nested_fixes_take_turns() -> None:
    result = fix_source(source_of("y = f(f(f(1)))\n"), rewriting(r"f\((.*)\)", r"g(\2)"), unsafe=False)
    assert result.text == "y = g(g(g(1)))\n"
    assert len(result.fixed) == 3
    assert not result.remaining


def test_edits_of_one_fix_go_together() -> None:
    """The second fix touches the first one's second edit, so its first edit waits as well."""

    def find(source: Source) -> list[Finding]:
        if source.text != "a, b, c\n":
            return []
        return [finding(Edit(0, 1, "x"), Edit(6, 7, "z")), finding(Edit(3, 4, "y"), Edit(6, 7, "w"))]

    assert fix_source(source_of("a, b, c\n"), find, unsafe=False).text == "x, b, z\n"


def test_an_edit_that_two_fixes_share_is_made_once() -> None:
    def find(source: Source) -> list[Finding]:
        if "import math" in source.text:
            return []
        imports = Edit(0, 0, "import math\n")
        return [finding(imports, Edit(1, 2, "x")), finding(imports, Edit(4, 5, "y"))]

    result = fix_source(source_of("\na, b\n"), find, unsafe=False)
    assert result.text == "import math\n\nx, y\n"
    assert len(result.fixed) == 2


def test_fixes_that_restructure_one_function_take_turns() -> None:
    """Both want one line more; once it is there, the other has nothing left to say."""

    def find(source: Source) -> list[Finding]:
        if "unscale" in source.text:
            return []
        steps = [m.start() for m in re.finditer(r"    clip\(", source.text)]
        return [finding(Edit(at, at, "    unscale()\n")) for at in steps]

    text = "def f():\n    clip(1)\n    clip(2)\n"
    assert fix_source(source_of(text), find, unsafe=False).text == text.replace(
        "    clip(1)", "    unscale()\n    clip(1)"
    )


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (Edit(0, 1, "x"), Edit(1, 3, " = "), True),
        (Edit(0, 1, "x"), Edit(1, 1, "y"), False),
        (Edit(1, 1, "y"), Edit(1, 3, " = "), False),
        (Edit(1, 1, "y"), Edit(1, 1, "z"), False),
        (Edit(0, 2, "x "), Edit(1, 3, " = "), False),
        (Edit(0, 5, "x = b"), Edit(1, 1, "y"), False),
    ],
)
def test_only_edits_that_stand_apart_are_made_in_one_round(first: Edit, second: Edit, together: bool) -> None:
    for order in ((first, second), (second, first)):
        mending = Mending(source_of("a = b\n"), unsafe=False)
        assert mending.advance([finding(edit) for edit in order])
        assert len(mending.fixed) == 1 + together


def test_an_edit_within_one_of_several_waits() -> None:
    mending = Mending(source_of("a = b\n"), unsafe=False)
    assert mending.advance([finding(Edit(0, 3, "x ="), Edit(4, 5, "y")), finding(Edit(0, 1, "z"))])
    assert mending.source.text == "x = y\n"


@pytest.mark.parametrize("imports", ["import math\n", "from math import exp\n"])
def test_an_import_keeps_no_other_fix_waiting(imports: str) -> None:
    mending = Mending(source_of("\ndef f():\n    return a, b\n"), unsafe=False)
    fixes = [finding(Edit(0, 0, imports), Edit(21, 22, "x")), finding(Edit(0, 0, imports), Edit(24, 25, "y"))]
    assert mending.advance(fixes)
    assert mending.source.text == f"{imports}\ndef f():\n    return x, y\n"


def test_a_line_after_the_last_of_a_function_restructures_it() -> None:
    text = "def f():\n    clip(1)\n    step()\n\n\nx = 1\n"
    after = text.index("\n\n") + 1
    mending = Mending(source_of(text), unsafe=False)
    assert mending.advance([finding(Edit(at, at, "    update()\n")) for at in (text.index("    clip"), after)])
    assert mending.source.text.count("update") == 1
    mending = Mending(source_of(text), unsafe=False)
    assert mending.advance(
        [finding(Edit(after, after, "    update()\n")), finding(Edit(len(text), len(text), "y = 2\n"))]
    )
    assert mending.source.text == text.replace("step()\n", "step()\n    update()\n") + "y = 2\n"


def test_fixes_that_restructure_two_functions_go_together() -> None:
    text = "def f():\n    clip(1)\n\n\ndef g():\n    clip(2)\n"
    mending = Mending(source_of(text), unsafe=False)
    assert mending.advance(
        [finding(Edit(m.start(), m.start(), "    unscale()\n")) for m in re.finditer("    clip", text)]
    )
    assert mending.source.text == text.replace("    clip", "    unscale()\n    clip")


def test_unsafe_fixes_are_only_counted() -> None:
    result = fix_source(source_of("f(1)\n"), rewriting("f", "g", Safety.UNSAFE), unsafe=False)
    assert result.text == "f(1)\n"
    assert result.fixable_unsafely == 1
    assert fix_source(source_of("f(1)\n"), rewriting("f", "g", Safety.UNSAFE), unsafe=True).text == "g(1)\n"


def test_a_result_that_does_not_parse_is_refused() -> None:
    result = fix_source(source_of("f(1)\ng(2)\n"), rewriting(r"f\(", "h(("), unsafe=False)
    assert result.text == "f(1)\ng(2)\n"
    assert result.error is not None
    assert "AMP101 would not parse (line 1" in result.error
    assert not result.fixed
    assert len(result.remaining) == 1


def test_edits_that_cannot_be_made_are_refused() -> None:
    result = fix_source(source_of("f(1)\n"), lambda _: [finding(Edit(0, 2, ""), Edit(1, 3, ""))], unsafe=False)
    assert result.text == "f(1)\n"
    assert result.error == "the fix of AMP101 cannot be made: overlapping edits at 1"


def test_after_an_error_nothing_more_is_applied() -> None:
    mending = Mending(source_of("f(1)\n"), unsafe=False)
    assert mending.advance([finding(Edit(2, 3, "2"))])
    assert not mending.advance([finding(Edit(0, 1, "(")), finding(Edit(2, 3, "3"), code="AMP102")])
    assert not mending.advance([finding(Edit(0, 1, "g"))])
    assert mending.source.text == "f(1)\n"
    assert mending.error is not None
    assert "the fix of AMP101, AMP102 would not parse" in mending.error


def test_what_does_not_parse_and_has_no_fix_is_left_as_it_is() -> None:
    unreadable = Finding(Path("a.py"), AT, AT, "AMP000", "name", Severity.ERROR, "message")
    assert fix_source(source_of("f(\n"), lambda _: [unreadable], unsafe=True).remaining == (unreadable,)


@pytest.mark.parametrize(("pattern", "replacement"), [("f", "ff"), ("f|g", lambda m: "g" if m[0] == "f" else "f")])
def test_fixes_without_end_are_refused(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> None:
    def find(source: Source) -> list[Finding]:
        text = re.sub(pattern, replacement, source.text, count=1)
        return [finding(Edit(0, len(source.text), text))]

    result = fix_source(source_of("f(1)\n"), find, unsafe=False)
    assert result.text == "f(1)\n"
    assert result.error is not None
    assert "undo each other" in result.error


def test_quotes_are_not_put_into_a_format_string() -> None:
    text = "y = f(f'{f(1)}')\n"
    assert fix_source(source_of(text), rewriting(r"f\(", "g('a', "), unsafe=False).text == "y = g('a', f'{f(1)}')\n"
    assert fix_source(source_of(text), rewriting(r"f\(", "g("), unsafe=False).text == "y = g(f'{g(1)}')\n"


@pytest.mark.parametrize("held", ['"a"', "'a'", "b'\\n'", "(1,\n)", "(1, # a\n)"])
def test_what_a_format_string_cannot_hold_is_not_put_into_it(held: str) -> None:
    mending = Mending(source_of('y = f"""{f(1)}"""\n'), unsafe=False)
    assert not mending.advance([finding(Edit(9, 13, held))])
    assert mending.error is None
    assert Mending(source_of("y = 'a', f(1)\n"), unsafe=False).advance([finding(Edit(9, 13, held))])


WORDS = st.sampled_from(["f(x)", "g(f(x))", "# f(x)", "'f(x)'", "é", "\t", "f(f(y))", "k"])


@given(lines=st.lists(st.lists(WORDS, max_size=4), max_size=6), newline=st.sampled_from(["\n", "\r\n", "\r"]))
def test_only_the_edits_change_the_text(lines: list[list[str]], newline: str) -> None:
    text = newline.join(
        f"v = [{', '.join(word for word in line if word[0] not in '#	')}]  # {line!r}" for line in lines
    )
    result = fix_source(source_of(text), rewriting(r"\bf\((.*?)\)", r"h(\2)"), unsafe=False)
    assert result.text == re.sub(r"\bf\(", "h(", text)
    again = fix_source(result.source, rewriting(r"\bf\((.*?)\)", r"h(\2)"), unsafe=False)
    assert again.text == result.text
    assert not again.fixed


# -- writing ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_bytes(b"\xef\xbb\xbfx = 'caf\xc3\xa9'\r\n")
    return path


def read(path: Path) -> Source:
    return Source.from_bytes(path, path.read_bytes())


def test_write_keeps_mode_mark_and_newlines(script: Path) -> None:
    script.chmod(0o755)
    original = read(script)
    write(original, original.edited([Edit(0, 1, "y")]))
    assert script.read_bytes() == b"\xef\xbb\xbfy = 'caf\xc3\xa9'\r\n"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert os.listdir(script.parent) == [script.name]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no such masks here")
def test_signals_are_let_through_again_after_writing(script: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    original = read(script)
    write(original, original.edited([Edit(0, 1, "y")]))
    with pytest.raises(FixError):
        write(original, original.edited([Edit(0, 1, "z")]))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_file_that_changed_is_left_alone(script: Path) -> None:
    original = read(script)
    script.write_bytes(b"x = 2\n")
    with pytest.raises(FixError, match="changed"):
        write(original, original.edited([Edit(0, 1, "y")]))
    assert script.read_bytes() == b"x = 2\n"
    assert os.listdir(script.parent) == [script.name]


def test_a_file_that_vanished_is_not_made_again(script: Path) -> None:
    original = read(script)
    script.unlink()
    with pytest.raises(FileNotFoundError):
        write(original, original.edited([Edit(0, 1, "y")]))
    assert os.listdir(script.parent) == []


def test_the_target_of_a_link_is_written(script: Path) -> None:
    link = script.parent / "link.py"
    link.symlink_to(script.name)
    original = read(link)
    write(original, original.edited([Edit(0, 1, "y")]))
    assert link.is_symlink()
    assert script.read_bytes().startswith(b"\xef\xbb\xbfy = ")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX users")
def test_a_read_only_file_is_left_alone() -> None:
    """Although its folder would let it be replaced. The superuser may write everything, so a child gives that up."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "train.py"
        path.write_text("x = 1\n")
        path.chmod(0o444)
        original = read(path)
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                write(original, original.edited([Edit(0, 1, "y")]))
            except PermissionError as error:
                os._exit(7 if "read-only" in str(error) else 8)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert path.read_text() == "x = 1\n"
        assert os.listdir(folder) == [path.name]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs POSIX limits")
def test_a_full_disk_leaves_the_file_and_nothing_beside_it(script: Path) -> None:
    """A limit on the size of files stands in for the end of the disk."""
    program = """
import resource, signal, sys
from pathlib import Path
from amplint.fix import write
from amplint.source import Source
path = Path(sys.argv[1])
original = Source.from_bytes(path, path.read_bytes())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    write(original, Source(path, "y = 1\\n" * 1000))
except OSError as error:
    print(type(error).__name__)
"""
    before = script.read_bytes()
    done = subprocess.run([sys.executable, "-c", program, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "OSError\n"
    assert script.read_bytes() == before
    assert os.listdir(script.parent) == [script.name]


WRITER = """
import signal
import sys
from pathlib import Path
from amplint.fix import write
from amplint.source import Source
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have told it to ignore
path = Path(sys.argv[1])
texts = ["x = 1\\n" * 50_000, "y = 22\\n" * 50_000]
print("ready", flush=True)
while True:
    for old, new in (texts, texts[::-1]):
        write(Source(path, old), Source(path, new))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
@pytest.mark.parametrize("kind", ["SIGTERM", "SIGINT", "SIGKILL"])
@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.02])
def test_killed_in_the_middle_of_writing(tmp_path: Path, kind: str, delay: float) -> None:
    path = tmp_path / "train.py"
    whole = {"x = 1\n" * 50_000, "y = 22\n" * 50_000}
    path.write_text("x = 1\n" * 50_000)
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(delay)
    child.send_signal(getattr(signal, kind))
    child.communicate()
    assert path.read_text() in whole
    if kind != "SIGKILL":  # which no program can clean up after
        assert os.listdir(tmp_path) == ["train.py"]


def test_every_byte_outside_an_edit_is_kept_in_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "old.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nname = 'caf\xe9'\nx = 1\n")
    original = read(path)
    at = original.text.index("x = 1")
    write(original, original.edited([Edit(at, at + 1, "y")]))
    assert path.read_bytes() == b"# -*- coding: latin-1 -*-\nname = 'caf\xe9'\ny = 1\n"
    assert ast.parse(path.read_bytes())
