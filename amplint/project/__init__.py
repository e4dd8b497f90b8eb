"""The files of one project, linked: what a name, a method or a call stands for in another file.

Nothing is parsed that is not asked for. Every question about other files comes down to the *primitives* below, so
that a cache can record them (`recording`) and later ask whether they would still be answered alike.
"""

from __future__ import annotations

import ast
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from sys import intern
from typing import TypeVar
from weakref import WeakValueDictionary

from amplint import index
from amplint.index import Summary
from amplint.project import calls, classes, names
from amplint.project.asked import NOTHING, Asked, Question, Recording
from amplint.project.definitions import Callee, CallSite, Definition, default_of, parameters
from amplint.project.files import Files
from amplint.project.questions import Questions
from amplint.source import Source, UnreadableSourceError
from amplint.tree import Module, parse, parse_in_sections

__all__ = [
    "NOTHING",
    "Asked",
    "CallSite",
    "Callee",
    "Definition",
    "Project",
    "Question",
    "Recording",
    "default_of",
    "parameters",
]

T = TypeVar("T")

_KEPT_TREES = 8_000_000
"""Characters that are held parsed: some 170 MB. With fewer, the answers of large projects are found over and over."""

_TEXT = 12
"""Characters of text that count as much as one that is parsed."""

_ANSWER = 40
"""Parsed characters that a remembered answer counts for."""

_LEFT_TREES = 3_000_000
"""Characters of those asked for last, which stay when the others are let go: the next file may well need them."""

_HOPS = 3
"""How many calls back a parameter is followed to the arguments it is given."""


class Project:
    """The files, linked on demand. Definitions are compared by the identity of their nodes."""

    def __init__(
        self,
        files: Iterable[Path],
        read: Callable[[Path], Source],
        summaries: Callable[[Iterable[Path]], Iterable[Summary]] | None = None,
    ) -> None:
        """`read` gives the source of a path; it may raise OSError or UnreadableSourceError. `summaries` gives what the
        texts of files tell, one after the other, if that is known without reading them."""
        self._files = Files(files)
        self._read = read
        self._questions = Questions()
        self._summaries = summaries or (lambda paths: (index.summary(self._text(path)) for path in paths))
        self._imported: dict[tuple[str, Path], tuple[Path, ...]] = {}
        self._importing: dict[Path, set[Path]] = {}
        self._named: dict[str, dict[str, Sequence[Path]]] = {}
        self._changed: set[Path] = set()
        self._unreadable: set[Path] = set()
        self.staged: dict[Question, None] = {}
        """The questions asked in what is worked out once for all files."""
        self._modules: WeakValueDictionary[Path, Module] = WeakValueDictionary()
        self._recent: OrderedDict[Path, Module] = OrderedDict()
        self._weights: dict[Path, int] = {}
        self._held = 0
        """The weight of what is held: of each file the characters that are parsed, and a part of those that are not."""
        self.hops = _HOPS
        self._paths = sorted(self._files.paths.values())
        self._folders = {path: os.path.dirname(path) for path in self._paths}

    @property
    def paths(self) -> list[Path]:
        """All files, sorted."""
        return self._paths

    # -- primitives: what a cached answer may rest on -------------------------------------------------------------

    def module(self, path: Path) -> Module | None:
        """The parsed file; None if it cannot be read or parsed."""
        self._questions.note("module", str(path))
        if path in self._unreadable:
            return None
        module = self._modules.get(path) or self._parse(path)
        return module if module is None else self._latest(module)

    def whole(self, path: Path) -> Module | None:
        """The file with all its definitions parsed; None if it cannot be read, or one of them cannot be parsed."""
        self._questions.note("module", str(path))
        try:
            module = self._modules.get(path) or parse(self._read(path))
        except (OSError, UnreadableSourceError, SyntaxError, ValueError):
            return None
        return self._latest(module) if module.read_all() else None

    def files_of(self, dotted: str, importer: Path) -> tuple[Path, ...]:
        """The file that `import dotted` in `importer` loads (leading dots are relative); several if unsure which."""
        self._questions.note("files_of", dotted, str(importer))
        key = (dotted, importer.parent)
        if key not in self._imported:
            self._imported[key] = self._files.imported(dotted, importer)
        return self._imported[key]

    def files_calling(self, name: str) -> tuple[Path, ...]:
        """The files in which something of this (undotted) name seems to be called."""
        self._questions.note("files_calling", name)
        return tuple(self._by_name("files_calling").get(name, ()))

    def files_passing(self, name: str) -> tuple[Path, ...]:
        """The files in which something of this (undotted) name stands without being called there."""
        self._questions.note("files_passing", name)
        return tuple(self._by_name("files_passing").get(name, ()))

    def files_deriving(self, name: str) -> tuple[Path, ...]:
        """The files in which a class of this (undotted) name seems to be a base."""
        self._questions.note("files_deriving", name)
        return tuple(self._by_name("files_deriving").get(name, ()))

    def files_switching(self) -> tuple[Path, ...]:
        """The files that seem to switch half precision on."""
        self._questions.note("files_switching", "half")
        return tuple(self._by_name("files_switching").get("half", ()))

    def are_siblings(self, path: Path, other: Path) -> bool:
        """Whether two files stand in one folder."""
        folders = self._folders
        return folders.get(path) == folders.get(other)

    def files_using(self, word: str) -> tuple[Path, ...]:
        """The files whose text, docstrings apart, holds `word`."""
        self._questions.note("files_using", word)
        key = ("using", word)
        return self._questions.remember(
            key, lambda: tuple(path for path in self._naming(word) if word in index.code(self._text(path))), ()
        )

    def defines(self, name: str) -> bool:
        """Whether a function, class or attribute of this project seems to have this (undotted) name."""
        self._questions.note("defines", name)
        return name in self._by_name("defines")

    def files_importing(self, path: Path) -> frozenset[Path]:
        """The files that seem to import a file, or the package that it stands in."""
        self._questions.note("files_importing", str(path))
        self._read_summaries()
        known = self._importing
        return frozenset(known.get(path, set()) | known.get(path.parent / "__init__.py", set()))

    def mentions(self, path: Path, word: str) -> bool:
        """Whether the text of one file holds `word`."""
        self._questions.note("module", str(path))
        module = self._modules.get(path)
        return word in (module.source.text if module else self._text(path))

    def answer(self, question: Question) -> tuple[str, ...]:
        """The answer to a recorded question as paths. A file is its own answer: it is compared, not asked."""
        match question:
            case ("files_of", dotted, importer):
                paths: Iterable[Path] = self.files_of(dotted, Path(importer))
            case ("files_calling", name):
                paths = self.files_calling(name)
            case ("files_passing", name):
                paths = self.files_passing(name)
            case ("files_deriving", name):
                paths = self.files_deriving(name)
            case ("files_switching", _):
                paths = self.files_switching()
            case ("files_using", word):
                paths = self.files_using(word)
            case ("files_importing", path):
                paths = sorted(self.files_importing(Path(path)))
            case ("defines", name):
                paths = self._by_name("defines").get(name, ())
            case _:
                paths = ()
        return tuple(map(str, paths))

    # -- reading -------------------------------------------------------------------------------------------------

    def modules(self, paths: Iterable[Path]) -> Iterator[Module]:
        """These files, parsed one by one; without those that cannot be."""
        return (module for path in paths if (module := self.module(path)))

    def modules_with(self, *words: str) -> Iterator[Module]:
        """The files whose text, docstrings apart, holds one of `words`."""
        return self.modules(sorted({path for word in words for path in self.files_using(word)}))

    def add(self, module: Module) -> None:
        """Take a file as parsed elsewhere, so that it is not parsed again."""
        path, weight = module.source.path, module.size + len(module.source.text) // _TEXT
        self._modules[path] = module
        self._recent[path] = module
        self._held += weight - self._weights.get(path, 0)
        self._weights[path] = weight

    def forget(self, path: Path) -> None:
        """Read one file anew. Analyses made over this project must be made anew."""
        self._modules.pop(path, None)
        self._recent.pop(path, None)
        self._held -= self._weights.pop(path, 0)
        self._unreadable.discard(path)
        self._changed.add(path)
        self._questions.clear()

    def abandon(self) -> None:
        """Forget all trees and answers: the work was interrupted, and some of them may be half made."""
        self._modules.clear()
        self._recent.clear()
        self._weights.clear()
        self._held = 0
        self._questions = Questions()

    def trim(self, answers: int) -> bool:
        """Forget what was parsed, if that is much, together with so many answers that analyses remember.

        True if so: analyses made over this project must be trimmed.
        """
        if self._held + _ANSWER * (answers + len(self._questions)) <= _KEPT_TREES:
            return False
        while self._held > _LEFT_TREES:
            path, module = self._recent.popitem(last=False)
            self._held -= self._weights.pop(path)
            module.kept.clear()  # what refers back to the file would hold it
        self._questions.clear()
        return True

    @property
    def answered(self) -> int:
        """How many questions were worked out so far."""
        return self._questions.answered

    def calls_of(self, name: str) -> Iterator[CallSite]:
        """The calls, anywhere in the project, of what has this (last) name."""
        modules = self.modules(self.files_calling(name))
        return (CallSite(module, call) for module in modules for call in module.calls_of(name))

    def recording(self) -> AbstractContextManager[Recording]:
        """Records the primitive questions that answers within the block rest on."""
        return self._questions.recording()

    @contextmanager
    def stage(self) -> Iterator[Recording]:
        """Around what is worked out once for all files. What uses it rests on what it says of single files, instead of
        on the thousands of questions that were asked within the block: those are `staged`."""
        recording = Recording()
        with self._questions.apart(recording):
            yield recording
        self.staged |= dict.fromkeys(q for q in recording.close().questions() if q[0] != "half")
        recording.asked = NOTHING

    def note_half(self, path: Path) -> None:
        """Half precision in a file was asked about, which is no question to the project itself."""
        self._questions.note("half", str(path))

    def rest_on(self, asked: Asked) -> None:
        """An answer remembered elsewhere is used: what it rests on belongs to the current recording too."""
        self._questions.rest_on(asked)

    def remember(self, key: Hashable, answer: Callable[[], T], default: T) -> T:
        """`answer()`, worked out once per key, with what it rests on; `default` where it needs itself."""
        return self._questions.remember(key, answer, default)

    # -- names ---------------------------------------------------------------------------------------------------

    def resolve(self, module: Module, name: ast.expr | str) -> tuple[Definition, ...]:
        """The definitions that an expression of `module`, or a dotted import target as seen from it, stands for.

        Functions, classes, modules, and the binding nodes of other variables. Follows imports, re-exports, star
        imports and plain aliases. Empty: not of this project, or unknown.
        """
        return names.resolve(self, module, name)

    # -- classes -------------------------------------------------------------------------------------------------

    def mro(self, cls: Definition) -> tuple[Definition, ...]:
        """The class and its bases in this project, in method resolution order."""
        return classes.mro(self, cls)

    def base_names(self, cls: Definition) -> frozenset[str]:
        """The dotted names of all bases, those outside this project too: `torch.nn.Module`."""
        return classes.base_names(self, cls)

    def class_member(self, cls: Definition, name: str) -> Definition | None:
        """The function or class that `cls.name` finds."""
        return classes.class_member(self, cls, name)

    def method(self, cls: Definition, name: str) -> Definition | None:
        """The function that `instance.name` finds."""
        found = classes.class_member(self, cls, name)
        return found if found and isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef) else None

    def subclasses(self, cls: Definition) -> tuple[Definition, ...]:
        """The classes of this project that derive from `cls`, directly or not."""
        return classes.subclasses(self, cls)

    def attribute(self, cls: Definition, name: str) -> tuple[Definition, ...]:
        """Where `self.name` is bound: the `self.name` targets, class-level targets and fields, along the MRO."""
        key = ("attribute", cls.node, name)
        return self.remember(key, lambda: classes.attribute(self, cls, name), ())

    def self_targets(self, cls: Definition) -> Iterator[ast.Attribute]:
        """The targets `self.name` in the methods of a class."""
        return classes.self_targets(cls, cls.module.nodes)

    def types(self, module: Module, expression: ast.expr) -> tuple[Definition, ...]:
        """The classes of this project that `expression` may be an instance of; empty: unknown."""
        return classes.types(self, module, expression)

    def classes_of(self, module: Module, expression: ast.expr) -> tuple[Definition, ...]:
        """The classes of this project that `expression` may be."""
        return calls.classes_of(self, module, expression)

    def sources(self, module: Module, expression: ast.expr) -> tuple[tuple[Module, ast.expr], ...]:
        """The expressions, each with its file, whose value `expression` may hold: through variables, attributes,
        conditionals, and parameters of functions in this project. Flow-insensitive; empty: unknown."""
        key = ("sources", names.identity(module, expression), self.hops)
        return self.remember(key, lambda: tuple(dict.fromkeys(classes.sources(self, module, expression))), ())

    # -- calls ---------------------------------------------------------------------------------------------------

    def callees(self, module: Module, call: ast.Call, receiver: Definition | None = None) -> tuple[Callee, ...]:
        """The functions of this project that `call` may enter; empty: unknown.

        `receiver` is the class that `self` is known to be an instance of; without it, `self.m()` gives the method
        and those of all subclasses that override it.
        """
        return calls.callees(self, module, call, receiver)

    def callers(self, function: Definition) -> tuple[CallSite, ...]:
        """The calls in this project that may enter `function`, each confirmed by `callees`."""
        return calls.callers(self, function)

    @contextmanager
    def at_most(self, hops: int) -> Iterator[None]:
        """Within the block, parameters are followed at most so many calls back."""
        before, self.hops = self.hops, min(self.hops, max(hops, 0))
        try:
            yield
        finally:
            self.hops = before

    def one_hop(self) -> AbstractContextManager[None]:
        """Within the block, parameters are followed one call fewer, which keeps questions from going in circles."""
        return self.at_most(self.hops - 1)

    def calling_files(self, function: Definition) -> tuple[Path, ...]:
        """The files in which `function` may be called, before anything is confirmed."""
        return calls.calling_files(self, function)

    # -- inside --------------------------------------------------------------------------------------------------

    def _parse(self, path: Path) -> Module | None:
        try:
            module = parse_in_sections(self._read(path))
        except (OSError, UnreadableSourceError, SyntaxError, ValueError):
            self._unreadable.add(path)
            return None
        self._modules[path] = module
        return module

    def _latest(self, module: Module) -> Module:
        """The file, as the one that was asked for last."""
        self.add(module)
        self._recent.move_to_end(module.source.path)
        return module

    def _text(self, path: Path) -> str:
        """The program of a file; empty if it cannot be read. It is not kept: texts would be half of all memory."""
        try:
            return self._read(path).text
        except (OSError, UnreadableSourceError):
            return ""

    def _by_name(self, question: str) -> dict[str, Sequence[Path]]:
        """The files of which a question about a name holds, by the name, for all names at once."""
        self._read_summaries()
        return self._named[question]

    def _read_summaries(self) -> None:
        """Turn what the files tell by themselves into what is known of each name."""
        if self._named and not self._changed:
            return
        named: dict[str, dict[str, Sequence[Path]]] = self._named or {question: {} for question in index.NAMES}
        importing = self._importing
        paths = sorted(self._changed) if self._named else self._paths
        for summary, path in zip(self._summaries(paths), paths, strict=True):
            for loaded in self._files.loaded(summary[index.IMPORTS], path):
                importing.setdefault(loaded, set()).add(path)
            for question, found in named.items():
                _enter(path, summary[question], found)
        self._named = named  # only now: a file's time may run out before
        self._changed.clear()

    def _naming(self, word: str) -> tuple[Path, ...]:
        """The files that may hold a word: all, if it is no part of a name."""
        if not word.isidentifier() or not word.isascii():
            return tuple(self._paths)
        names = (self._by_name(question) for question in ("files_calling", "files_passing"))
        return tuple(sorted({path for known in names for name in known if word in name for path in known[name]}))


def _enter(path: Path, names: Iterable[str], known: dict[str, Sequence[Path]]) -> None:
    """Note that a file has these names. What it had before a change stays: that only costs a parse."""
    alone = (path,)  # most names are of one file: those share this
    for name in names:
        paths = known.get(name)
        if paths is None:
            known[intern(name)] = alone
        elif isinstance(paths, list) and paths[-1] < path:
            paths.append(path)
        elif path not in paths:
            known[name] = sorted([*paths, path])
