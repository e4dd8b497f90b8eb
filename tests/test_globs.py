"""Patterns of ignore files: the same verdicts as pathspec's own, in bounded time."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from amplint.globs import ignore_spec

PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "**", "/", "?", "/**/", "[ab]", "!", "a*b"]), min_size=1).map(
    "".join
)
PATHS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5).map("/".join)


@given(PATTERNS, PATHS)
@example("a/**/b/**/c", "a/bc/b/c")
@example("a*b*b", "abcb")
@example("a*b*b", "ab")
@example("a*b*/b*b", "acb/bb")
@example("**/a/**/b*c/**/c", "b/a/b/bc/b/c")
def test_the_verdict_is_that_of_pathspec(pattern: str, path: str) -> None:
    try:
        known = GitIgnoreSpec.from_lines([pattern], backend="simple")
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            ignore_spec([pattern])
        return
    for name in (path, f"{path}/"):
        assert ignore_spec([pattern]).check_file(name).include == known.check_file(name).include


@pytest.mark.parametrize(
    "pattern",
    ["*a" * 30 + "b", "a*" * 25 + "c", "*" * 50 + "b", "a/**/" * 30 + "x", "**/a/" * 30 + "c*", "*a*a*/" * 5 + "b"],
)
def test_no_name_takes_long(pattern: str) -> None:
    begun = time.process_time()
    spec = ignore_spec([pattern])
    for name in ("a" * 255 + ".py", "a/" * 1900 + "a.py", f"{'a' * 255}/" * 15 + "a.py"):
        assert not spec.check_file(name).include
    assert time.process_time() - begun < 5
