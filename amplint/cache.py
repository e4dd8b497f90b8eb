"""What was found is found again without looking: a judgement holds as long as all that it rests on is as it was.

A judgement rests on its file and on the primitive questions that were asked of the project (`Project.recording`). The
cache keeps their answers. On the next run only files that changed are read: from their texts follows which answers
have changed, and so which judgements must be made anew. A file whose size and time are as they were is not looked at;
one that has only another time (a fresh checkout) has not changed.

The cache is one JSON file for each set of settings, written whole or not at all. What cannot be read is ignored and
made anew; what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from amplint import __version__, index
from amplint.cache_folder import Stamp, digest, settled, stamp_of, write
from amplint.diagnostic import Judgement
from amplint.relevance import facts
from amplint.stored import decode, encode

if TYPE_CHECKING:
    from amplint.project.asked import Question

_FORMAT = 3


@dataclass(slots=True)
class _State:
    """What the file holds: stamps, digests and facts of all files, answers of questions, judgements with what they rest
    on, and what half precision in the project, on which many of them rest by its answer for a file, rests on itself."""

    stamps: dict[str, Stamp] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    answers: dict[Question, tuple[str, ...]] = field(default_factory=dict)
    rests_on: dict[str, tuple[Question, ...]] = field(default_factory=dict)
    staged: tuple[Question, ...] = ()
    judgements: dict[str, Any] = field(default_factory=dict)


class Asks(Protocol):
    """Whom a cache asks of the project as it is now: a Linter."""

    def digest(self, path: Path) -> str:
        """What tells a file's content from any other; empty if it cannot be read."""

    def text(self, path: Path) -> str:
        """The program of a file, empty if it cannot be read."""

    def half_in(self, path: Path) -> tuple[str, ...]:
        """All that half precision of the project comes to in one file, in a word."""

    def staged(self) -> Iterable[tuple[Question, tuple[str, ...]]]:
        """What that rests on: the questions with their answers."""


class Cache:
    """The cache of one project under one set of settings."""

    def __init__(self, folder: Path, key: str, paths: Iterable[Path], project: Asks) -> None:
        """`paths` are all files of the project."""
        self.file = folder / f"{key}.json"
        self._paths = [Path(os.path.abspath(path)) for path in paths]
        self._stamps = {str(path): stamp_of(path) for path in self._paths}
        self._project = project
        self._begun = time.time_ns()
        self._is_renewed = False
        self._questions: dict[Question, Question] = {}
        """Each question once: other processes send copies."""
        self._state = self._valid(self._load())

    def known(self, path: Path) -> Judgement | None:
        """What was said of a file, if that still holds."""
        data = self._state.judgements.get(str(path))
        if data is None:
            return None
        try:
            return decode(data)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def store(self, path: Path, judgement: Judgement) -> None:
        """Take a new judgement. One that was cut short, or that a rule failed in, is not kept."""
        state = self._state
        if judgement.rests_on is None or judgement.failures or judgement.cut_short:
            return
        state.answers.update((q, answer) for q, answer in judgement.rests_on if answer is not None)
        state.rests_on[str(path)] = tuple(self._questions.setdefault(q, q) for q, _ in judgement.rests_on)
        state.judgements[str(path)] = encode(judgement)
        if judgement.staged:
            self._stage(state, judgement.staged)
        self._is_renewed = True

    def save(self) -> None:
        """Keep what is new for the next run."""
        if self._is_renewed:
            self._save(self._state)

    # -- what still holds ----------------------------------------------------------------------------------------

    def _valid(self, state: _State) -> _State:
        """The part of a state that the files, as they are now, leave valid, with its answers brought up to date."""
        touched = {p for p in state.stamps.keys() | self._stamps.keys() if state.stamps.get(p) != self._stamps.get(p)}
        changed = {path for path in touched if not self._is_as_it_was(path, state)}
        self._is_renewed = bool(touched)
        for path in changed:
            state.digests.pop(path, None)
        if changed and state.judgements:
            self._update(state, changed)
        state.stamps = self._stamps
        return state

    def _is_as_it_was(self, path: str, state: _State) -> bool:
        """Whether a file with another time has the content that it had."""
        known = state.digests.get(path)
        return known is not None and path in self._stamps and known == self._project.digest(Path(path))

    def _update(self, state: _State, changed: set[str]) -> None:
        texts = {path: self._project.text(Path(path)) for path in changed & self._stamps.keys()}
        moved = {path for path in changed if (path in state.stamps) != (path in self._stamps)}
        is_stale = self._staleness(state, changed, moved, texts)
        stale = {question for question in state.answers if question[0] != "half" and is_stale(question)}
        if not stale.isdisjoint(state.staged):
            stale |= self._follow_anew(state)
        for path in [p for p, asked in state.rests_on.items() if p in changed or not stale.isdisjoint(asked)]:
            del state.rests_on[path], state.judgements[path]

    def _follow_anew(self, state: _State) -> set[Question]:
        """The questions about half precision in a file that have another answer now. They are brought up to date."""
        new = {q: self._project.half_in(Path(q[1])) for q in state.answers if q[0] == "half"}
        stale = {question for question, answer in new.items() if answer != state.answers[question]}
        state.answers.update(new)
        self._stage(state, self._project.staged())
        return stale

    def _stage(self, state: _State, staged: Iterable[tuple[Question, tuple[str, ...]]]) -> None:
        answers = dict(staged)
        state.answers |= answers
        state.staged = tuple(answers)

    def _staleness(
        self, state: _State, changed: set[str], moved: set[str], texts: dict[str, str]
    ) -> Callable[[Question], bool]:
        """Whether the answer to a question has changed. It is brought up to date by the way."""
        from amplint.project.files import Files, is_among

        files = Files(self._paths)
        fresh = {path: _facts(text) for path, text in texts.items()}
        reconnected = bool(moved) or any(state.facts.get(path) != fact for path, fact in fresh.items())
        state.facts.update(fresh)
        loaded = {path: files.loaded(index.imported(text), Path(path)) for path, text in texts.items()}
        names = {
            kind: {path: frozenset(read(text)) for path, text in texts.items()} for kind, read in index.NAMES.items()
        }

        def holds(question: Question, path: str) -> bool:
            kind, name = question[0], question[1]
            if kind in names:
                return name in names[kind][path]
            if kind == "files_importing":
                return is_among(Path(name), loaded[path])
            return name in (index.code(texts[path]) if kind == "files_using" else texts[path])

        def is_stale(question: Question) -> bool:
            kind = question[0]
            if kind == "module":
                return question[1] in changed
            if kind == "concerns":
                return reconnected
            if kind == "files_importing" and moved:
                return True  # what an unchanged file imports may be another file now
            old = state.answers[question]
            if kind == "files_of":
                new = tuple(map(str, files.imported(question[1], Path(question[2])))) if moved else old
            else:
                kept = [path for path in old if path not in changed]
                new = tuple(sorted([*kept, *(path for path in texts if holds(question, path))]))
            state.answers[question] = new
            return set(new) != set(old)

        return is_stale

    # -- the file ------------------------------------------------------------------------------------------------

    def _load(self) -> _State:
        try:
            data = json.loads(self.file.read_bytes())
            if data["format"] != _FORMAT:
                return _State()
            questions = [tuple(question) for question in data["questions"]]
            paths = data["paths"]
            return _State(
                stamps={path: (stamp[0], stamp[1]) for path, stamp in zip(paths, data["stamps"], strict=True)},
                digests=dict(zip(paths, data["digests"], strict=True)),
                facts=data["facts"],
                answers={
                    question: tuple(paths[number] if isinstance(number, int) else number for number in answer)
                    for question, answer in zip(questions, data["answers"], strict=True)
                },
                rests_on={path: tuple(questions[n] for n in asked) for path, asked in data["rests_on"].items()},
                staged=tuple(questions[n] for n in data["staged"]),
                judgements=data["judgements"],
            )
        except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            return _State()

    def _save(self, state: _State) -> None:
        used = dict.fromkeys(question for asked in state.rests_on.values() for question in asked)
        used |= dict.fromkeys(state.staged)
        numbers = {question: number for number, question in enumerate(used)}
        paths = {path: number for number, path in enumerate(state.stamps)}
        data = {
            "format": _FORMAT,
            "paths": list(paths),
            "stamps": [settled(stamp, self._begun) for stamp in state.stamps.values()],
            "digests": [state.digests.get(path) or self._digest(path, stamp) for path, stamp in state.stamps.items()],
            "facts": self._connections(state) if any(question[0] == "concerns" for question in used) else {},
            "questions": list(numbers),
            "answers": [[paths.get(path, path) for path in state.answers.get(question, ())] for question in numbers],
            "staged": [numbers[question] for question in state.staged],
            "rests_on": {path: [numbers[question] for question in asked] for path, asked in state.rests_on.items()},
            "judgements": state.judgements,
        }
        write(self.file, [json.dumps(data, separators=(",", ":"))])

    def _digest(self, path: str, stamp: Stamp) -> str:
        """The digest of a file as it was when the run began; empty if it may have changed since."""
        found = self._project.digest(Path(path))
        return found if settled(stamp, self._begun) == stamp == stamp_of(Path(path)) else ""

    def _connections(self, state: _State) -> dict[str, str]:
        """What the connections of the files with torch are read off, for all of them."""
        return {path: state.facts.get(path) or _facts(self._project.text(Path(path))) for path in state.stamps}


def key_of(*settings: object) -> str:
    """The name of the cache for these settings, this amplint and this Python, whose syntax is what is read."""
    return digest(repr((*settings, sys.version_info[:2], _own_state())).encode())[:24]


def _facts(text: str) -> str:
    return facts(text.encode("utf-8", "surrogatepass"))


def _own_state() -> object:
    """What tells this amplint from any other: its part of the record of what was installed, which is alike in all
    environments; of a development version, when its files were changed last."""
    own = Path(__file__).parent
    record = own.parent / f"amplint-{__version__}.dist-info" / "RECORD"
    with contextlib.suppress(OSError):
        installed = record.read_text("utf-8").splitlines()
        return [line for line in installed if line.startswith("amplint/") and not line.endswith(".pyc,,")]
    rules = find_spec("amplint.rules")
    folders = [own, *map(Path, (rules.submodule_search_locations or ()) if rules else ())]
    return sorted((str(path), stamp_of(path)) for folder in folders for path in folder.rglob("*.py"))
