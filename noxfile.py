"""`nox`: the linter's tests on every supported Python, without torch; `nox -s types` checks the types."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests", "lint", "types"]


@nox.session(python=["3.10", "3.11", "3.12", "3.13", "3.14"])
def tests(session: nox.Session) -> None:
    """The tests that need no torch."""
    session.install("-e", ".[dev]")
    session.run("pytest", "--ignore=tests/runtime", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, as CI runs it."""
    session.install("ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict on `amplint` and `rules`."""
    session.install("-e", ".[dev]")
    session.run("mypy")
