"""Which files are checked and which are linked with them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from amplint.discovery import DEFAULT_EXCLUDE, Excludes, MissingPathError, discover, project_root, surroundings


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    return tmp_path


def grow(root: Path, *names: str, text: str = "") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(
    root: Path, *paths: str, exclude: Iterable[str] = DEFAULT_EXCLUDE, force: bool = False, gitignore: bool = True
) -> list[str]:
    excludes = Excludes(tuple(exclude), root)
    given = [root / path for path in paths or ("",)]
    files = discover(given, excludes, force_exclude=force, respect_gitignore=gitignore)
    return [path.relative_to(root).as_posix() for path in files]


def test_python_files_and_notebooks_sorted(tree: Path) -> None:
    grow(tree, "b.py", "a/z.ipynb", "a/b.py", "readme.md", "a/data.json", "script")
    assert found(tree) == ["a/b.py", "a/z.ipynb", "b.py"]


def test_usual_excludes(tree: Path) -> None:
    grow(tree, "a.py", ".venv/lib/b.py", "build/c.py", "node_modules/d.py", "x/__pycache__/e.py", "env/f.py")
    assert found(tree) == ["a.py", "env/f.py"]


def test_own_patterns(tree: Path) -> None:
    grow(tree, "a.py", "gen/a.py", "gen/keep.py", "deep/gen/b.py", "b_pb2.py")
    assert found(tree, exclude=["/gen", "*_pb2.py"]) == ["a.py", "deep/gen/b.py"]
    assert found(tree, exclude=["gen/*", "!gen/keep.py"]) == ["a.py", "b_pb2.py", "deep/gen/b.py", "gen/keep.py"]


def test_a_named_file_is_taken_unless_exclusion_is_forced(tree: Path) -> None:
    grow(tree, "build/a.py", "script")
    assert found(tree, "build/a.py", "script") == ["build/a.py", "script"]
    assert found(tree, "build/a.py", "script", force=True) == ["script"]


def test_a_folder_above_the_tree_does_not_exclude_it(tmp_path: Path) -> None:
    root = tmp_path / "build" / "project"
    grow(root, "a.py")
    assert found(root) == ["a.py"]


def test_gitignore_of_every_level(tree: Path) -> None:
    grow(tree, "a.py", "out/b.py", "pkg/c.py", "pkg/d.py", "pkg/out/e.py", "pkg/gen_f.py")
    (tree / ".gitignore").write_text("# generated\n\nout/\ngen_*.py\n")
    (tree / "pkg/.gitignore").write_text("d.py\n!gen_f.py\n")
    assert found(tree) == ["a.py", "pkg/c.py", "pkg/gen_f.py"]
    assert found(tree, "pkg") == ["pkg/c.py", "pkg/gen_f.py"]
    assert found(tree, gitignore=False) == ["a.py", "out/b.py", "pkg/c.py", "pkg/d.py", "pkg/gen_f.py", "pkg/out/e.py"]


def test_an_ignored_folder_that_is_named_is_meant(tree: Path) -> None:
    grow(tree, "a.py", "vendor/b.py", "vendor/deep/c.py", "vendor/deep/skip/d.py")
    (tree / ".gitignore").write_text("/vendor\n")
    (tree / "vendor/deep/.gitignore").write_text("skip\n")
    assert found(tree) == ["a.py"]
    assert found(tree, "vendor") == ["vendor/b.py", "vendor/deep/c.py"]
    assert linked(tree, "vendor/b.py") == {"a.py", "vendor/b.py"}
    assert linked(tree, "vendor/deep/c.py") == {"a.py", "vendor/deep/c.py"}


def test_git_info_exclude(tree: Path) -> None:
    grow(tree, "a.py", "local.py")
    (tree / ".git/info").mkdir()
    (tree / ".git/info/exclude").write_text("local.py\n")
    assert found(tree) == ["a.py"]


def test_a_broken_pattern_spoils_only_itself(tree: Path) -> None:
    grow(tree, "a.py", "b.py")
    (tree / ".gitignore").write_text("!\nb.py\n")
    assert found(tree) == ["a.py"]


def test_symbolic_links(tree: Path) -> None:
    grow(tree, "pkg/a.py", "outside.txt")
    (tree / "pkg/loop").symlink_to(tree / "pkg")
    (tree / "pkg/again.py").symlink_to("a.py")
    (tree / "pkg/dangling.py").symlink_to("nowhere.py")
    (tree / "pkg/circle.py").symlink_to("circle.py")
    (tree / "pkg/renamed.py").symlink_to(tree / "outside.txt")
    assert found(tree) == ["pkg/a.py", "pkg/renamed.py"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_and_folders_named_like_modules_are_not_opened(tree: Path) -> None:
    grow(tree, "folder.py/inner.py")
    os.mkfifo(tree / "pipe.py")
    assert found(tree) == ["folder.py/inner.py"]
    assert found(tree, "pipe.py", "folder.py") == ["folder.py/inner.py"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_passed_over(tree: Path) -> None:
    grow(tree, "a.py", "secret/b.py")
    (tree / "secret").chmod(0)
    try:
        assert found(tree) == ["a.py"]
    finally:
        (tree / "secret").chmod(0o755)


def test_each_file_once(tree: Path) -> None:
    grow(tree, "pkg/a.py")
    assert found(tree, "pkg", "pkg/a.py", "", "pkg/../pkg/a.py") == ["pkg/a.py"]


def test_a_missing_path_is_an_error(tree: Path) -> None:
    with pytest.raises(MissingPathError, match=r"nowhere\.py"):
        found(tree, "nowhere.py")


def linked(root: Path, *paths: str) -> set[str]:
    given = [root / path for path in paths]
    excludes = Excludes(DEFAULT_EXCLUDE, root)
    return {path.relative_to(root).as_posix() for path in surroundings(given, discover(given, excludes), excludes)}


def test_a_file_is_linked_with_its_project(tree: Path) -> None:
    grow(tree, "train.py", "pkg/model.py", "pkg/deep/loss.py", "build/old.py")
    assert linked(tree, "pkg/model.py") == {"train.py", "pkg/model.py", "pkg/deep/loss.py"}
    assert linked(tree, "pkg") == {"train.py", "pkg/model.py", "pkg/deep/loss.py"}


def test_without_a_project_a_file_is_linked_with_its_folder(tmp_path: Path) -> None:
    grow(tmp_path, "train.py", "model.py", "deep/other.py")
    assert project_root(tmp_path) is None
    assert linked(tmp_path, "train.py") == {"train.py", "model.py"}
    assert linked(tmp_path, "") == {"train.py", "model.py", "deep/other.py"}
