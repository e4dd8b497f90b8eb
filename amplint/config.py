"""Settings: the defaults, `[tool.amplint]` of a pyproject.toml or an amplint.toml, and the command line over them."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from amplint.context import Options
from amplint.discovery import DEFAULT_EXCLUDE, Excludes
from amplint.registry import UnknownSelectorError, matching, selection
from amplint.rule import Severity

FILE_NAMES = ("amplint.toml", "pyproject.toml")
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?(?:[+.\-a-z].*)?")


class ConfigError(Exception):
    """A setting that cannot be used; the message names the file, the key and, where there is one, the nearest."""


@dataclass(frozen=True)
class Settings:
    """All settings of a run. `root` is what patterns are relative to; `origins` says where each was set."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    extend_exclude: tuple[str, ...] = ()
    force_exclude: bool = False
    respect_gitignore: bool = True
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fail_on: Severity = Severity.WARNING
    max_norm: float = Options().max_norm
    torch_version: tuple[int, int] = Options().torch_version
    root: Path = field(default_factory=Path.cwd)
    origins: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def codes(self) -> frozenset[str]:
        """The codes that run."""
        return selection(self.select, self.ignore, self.extend_select)

    @cached_property
    def excludes(self) -> Excludes:
        return Excludes((*self.exclude, *self.extend_exclude), self.root)

    @property
    def options(self) -> Options:
        """The settings that rules read."""
        return Options(max_norm=self.max_norm, torch_version=self.torch_version)

    def ignored_in(self, path: Path) -> frozenset[str]:
        """The codes that `per-file-ignores` leaves out in a file."""
        return frozenset().union(
            *(codes for pattern, codes in self._per_file if pattern.match_any(path)),
        )

    @cached_property
    def _per_file(self) -> list[tuple[Excludes, frozenset[str]]]:
        return [
            (Excludes((pattern,), self.root), frozenset().union(*map(matching, selectors)))
            for pattern, selectors in self.per_file_ignores.items()
        ]


def load(paths: Iterable[Path], *, config: Path | None = None, isolated: bool = False) -> Settings:
    """The settings for a run over `paths`: of `config` if given, else of the nearest file above them.

    Raises ConfigError.
    """
    if config is not None:
        return read(config)
    found = None if isolated else nearest(paths)
    return Settings() if found is None else read(found)


def nearest(paths: Iterable[Path]) -> Path | None:
    """The first amplint.toml, or pyproject.toml with a `[tool.amplint]` table, from the paths' common folder upward."""
    start = common_folder(paths)
    for folder in (start, *start.parents):
        for name in FILE_NAMES:
            candidate = folder / name
            if candidate.is_file() and (name == "amplint.toml" or _table(candidate) is not None):
                return candidate
    return None


def read(path: Path) -> Settings:
    """The settings that a file gives. Raises ConfigError."""
    table = _table(path)
    if table is None:
        raise ConfigError(f"{path}: no [tool.amplint] table")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in KEYS:
            raise ConfigError(f"{path}: unknown key {key!r}{_did_you_mean(key, KEYS)}")
        values[key.replace("-", "_")] = _convert(path, key, value)
    origins = {key: str(path) for key in table}
    return Settings(**values, root=Path(os.path.abspath(path)).parent, origins=origins)


def override(settings: Settings, origin: str = "command line", **values: Any) -> Settings:
    """The settings with those values that are not None or empty put over them."""
    given = {key: value for key, value in values.items() if value not in (None, ())}
    origins = {**settings.origins, **{key.replace("_", "-"): origin for key in given}}
    return replace(settings, **given, origins=origins)


def torch_version(text: str) -> tuple[int, int]:
    """`2.4` or `2.4.1+cu121` as (2, 4). Raises ValueError."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no torch version such as 2.4")
    return int(match[1]), int(match[2])


def _table(path: Path) -> dict[str, Any] | None:
    """The table of amplint's settings in a TOML file; None if a pyproject.toml has none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if path.name == "pyproject.toml" and b"amplint" not in data:
        return None
    document = _parse(path, data)
    if path.name != "pyproject.toml" and "tool" not in document:
        return document
    table = document.get("tool", {}).get("amplint") if isinstance(document.get("tool", {}), dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: [tool.amplint] must be a table")
    return table


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None


def _convert(path: Path, key: str, value: Any) -> Any:
    """The value of a key as Settings holds it."""
    try:
        return KEYS[key].convert(value)
    except UnknownSelectorError as error:
        raise ConfigError(f"{path}: {key}: {error}") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {key} {error}, not {value!r}") from None


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("must be a list of strings")
    return tuple(value)


def _selectors(value: Any) -> tuple[str, ...]:
    selectors = _strings(value)
    for selector in selectors:
        matching(selector)
    return selectors


def _per_file_ignores(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise TypeError("must be a table of lists of codes")
    return {pattern: _selectors(selectors) for pattern, selectors in value.items()}


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def _severity(value: Any) -> Severity:
    names = [str(severity) for severity in Severity]
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return Severity[value.upper()]


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise TypeError("must be a positive number")
    return float(value)


def _torch_version(value: Any) -> tuple[int, int]:
    if not isinstance(value, str):
        raise TypeError('must be a version in quotes such as "2.4"')
    try:
        return torch_version(value)
    except ValueError:
        raise ValueError('must be a version such as "2.4"') from None


_LIST = {"type": "array", "items": {"type": "string"}}
_FLAG = {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration: how its value is read, its JSON schema, and what it is for."""

    convert: Callable[[Any], Any]
    schema: dict[str, Any]
    meaning: str


KEYS = {
    "select": Key(
        _selectors, _LIST, "Rules to run: codes, prefixes, names or ALL. Default: all that are on by default."
    ),
    "ignore": Key(_selectors, _LIST, "Rules not to run. The more specific of two selectors wins."),
    "extend-select": Key(_selectors, _LIST, "Rules to run besides those selected."),
    "exclude": Key(_strings, _LIST, "Patterns of files to leave out, as in .gitignore, in place of the usual ones."),
    "extend-exclude": Key(_strings, _LIST, "Patterns of files to leave out besides."),
    "force-exclude": Key(_flag, _FLAG, "Leave excluded files out even if they are named on the command line."),
    "respect-gitignore": Key(_flag, _FLAG, "Leave out what .gitignore leaves out. Default: true."),
    "per-file-ignores": Key(
        _per_file_ignores, {"type": "object", "additionalProperties": _LIST}, "Rules not to run, by pattern of files."
    ),
    "fail-on": Key(
        _severity,
        {"enum": [str(s) for s in Severity]},
        "The severity from which the exit status is 1. Default: warning.",
    ),
    "max-norm": Key(
        _positive,
        {"type": "number", "exclusiveMinimum": 0},
        "What the fix of AMP202 clips the gradient norm to. Default: 1.0.",
    ),
    "torch-version": Key(
        _torch_version, {"type": "string", "pattern": r"^\d+\.\d+"}, "The oldest torch that the code has to run with."
    ),
}


def schema() -> dict[str, Any]:
    """The JSON schema of the table `[tool.amplint]`, and of an amplint.toml."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of amplint",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {**key.schema, "description": key.meaning} for name, key in KEYS.items()},
    }


def _did_you_mean(word: str, words: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word.replace("_", "-"), list(words), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def common_folder(paths: Iterable[Path]) -> Path:
    """The deepest folder that holds all paths."""
    absolute = [os.path.abspath(path) for path in paths]
    if not absolute:
        return Path.cwd()
    common = Path(os.path.commonpath(absolute))
    return common if common.is_dir() else common.parent
