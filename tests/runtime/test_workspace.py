"""Temporary copies of a script's folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from amplint.runtime import workspace
from amplint.runtime.workspace import TooLargeError, copied


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "train.py").write_text("import package")
    (folder / "package" / "__init__.py").write_text("")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_whole_folder_is_copied(project: Path) -> None:
    with copied(project) as copy:
        assert names(copy.folder) == ["package", "package/__init__.py", "train.py"]
        assert copy.of(project / "train.py").read_text() == "import package"
        assert copy.original(str(copy.folder / "train.py")) == str(project / "train.py")
        assert copy.original("/elsewhere.py") == "/elsewhere.py"
    assert not copy.folder.parent.exists()


def test_version_control_and_environments_are_left_out(project: Path) -> None:
    for name in (".git", ".venv", "__pycache__"):
        (project / name).mkdir()
        (project / name / "file").write_text("")
    with copied(project) as copy:
        assert names(copy.folder) == ["package", "package/__init__.py", "train.py"]


def test_links_that_lead_out_are_left_out(project: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("")
    (project / "out").symlink_to(secret)
    (project / "key").symlink_to(secret / "key")
    (project / "dangling").symlink_to(project / "nothing")
    (project / "inside.py").symlink_to(project / "train.py")
    (project / "again").symlink_to(project / "package")
    with copied(project) as copy:
        assert names(copy.folder) == ["again", "inside.py", "package", "package/__init__.py", "train.py"]
        assert (copy.folder / "inside.py").resolve() == copy.folder / "train.py"
        assert (copy.folder / "again").resolve() == copy.folder / "package"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_are_left_out(project: Path) -> None:
    os.mkfifo(project / "pipe")
    with copied(project) as copy:
        assert "pipe" not in names(copy.folder)


def test_a_large_folder_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_FILES", 1)
    with pytest.raises(TooLargeError, match="--root"), copied(project):
        pass


def test_the_copy_goes_whatever_was_done_to_it(project: Path) -> None:
    with copied(project) as copy:
        locked = copy.folder / "locked"
        locked.mkdir()
        (locked / "file").write_text("")
        locked.chmod(0)
    assert not copy.folder.parent.exists()


def test_the_copy_goes_after_an_exception(project: Path) -> None:
    found = []

    def fail() -> None:
        with copied(project) as copy:
            found.append(copy.folder)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not found[0].exists()


def test_the_script_may_delete_its_folder(project: Path) -> None:
    with copied(project) as copy:
        shutil.rmtree(copy.folder)
    assert not copy.folder.parent.exists()
