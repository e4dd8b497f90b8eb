"""The deprecated names of torch.amp: where they are used, and how they and their imports change together."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass

from amplint.concrete import import_from, import_of, without_names
from amplint.edit import add_import, layout, name_argument, prepend_argument, set_argument
from amplint.gates import is_gated
from amplint.rule import Edit, Fix, Safety
from amplint.tree import Module


class Kind(enum.Enum):
    """How a name takes its device."""

    AUTOCAST = enum.auto()
    """As the first argument; its own positional arguments come in another order."""
    FIRST = enum.auto()
    """As the first argument, before its own."""
    DECORATOR = enum.auto()
    """As `device_type=`; stands with or without a call."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What a deprecated name is called now. `since` is the first torch that has it."""

    name: str
    device: str
    kind: Kind
    since: tuple[int, int]

    @property
    def spelling(self) -> str:
        parameter = "device_type=" if self.kind is Kind.DECORATOR else ""
        return f'{self.name}({parameter}"{self.device}")'


@dataclass(frozen=True, slots=True)
class Use:
    """A use of the deprecated name `old`: `name` is the expression, `node` its call, or itself if it is not called."""

    node: ast.expr
    name: ast.expr
    old: str
    replacement: Replacement


def _replacements() -> dict[str, Replacement]:
    table: dict[str, Replacement] = {}
    for device in ("cuda", "cpu"):
        old = f"torch.{device}.amp"
        autocast = Replacement("torch.amp.autocast", device, Kind.AUTOCAST, (1, 10))
        scaler = Replacement("torch.amp.GradScaler", device, Kind.FIRST, (2, 3))
        table |= {f"{old}.autocast": autocast, f"{old}.autocast_mode.autocast": autocast}
        table |= {f"{old}.GradScaler": scaler, f"{old}.grad_scaler.GradScaler": scaler}
    for name in ("custom_fwd", "custom_bwd"):
        decorator = Replacement(f"torch.amp.{name}", "cuda", Kind.DECORATOR, (2, 4))
        table |= {f"torch.cuda.amp.{name}": decorator, f"torch.cuda.amp.autocast_mode.{name}": decorator}
    for old, device in (("gpu", "cuda"), ("cpu", "cpu"), ("xla", "xla"), ("ipu", "ipu"), ("hpu", "hpu")):
        for verb, what in (("get", "dtype"), ("set", "dtype"), ("is", "enabled"), ("set", "enabled")):
            if (old, what) != ("gpu", "enabled"):
                new = Replacement(f"torch.{verb}_autocast_{what}", device, Kind.FIRST, (2, 4))
                table[f"torch.{verb}_autocast_{old}_{what}"] = new
    return table


_REPLACEMENTS = _replacements()
_LAST_NAMES = {old.rpartition(".")[2] for old in _REPLACEMENTS}
_NAMESPACES = {"torch.cuda.amp": "torch.amp", "torch.cpu.amp": "torch.amp"}
_TYPE_TESTS = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
_AUTOCAST_PARAMETERS = ("enabled", "dtype", "cache_enabled")


# -- the uses --------------------------------------------------------------------------------------------------------


def deprecated_uses(module: Module, torch_version: tuple[int, int]) -> Iterator[Use]:
    """The uses of deprecated names for which the given torch has a new one, but for code for older versions."""
    nodes = list(ast.walk(module.tree))
    imported = {n.asname for n in nodes if isinstance(n, ast.alias) and n.asname and n.name in _LAST_NAMES}
    imported |= _LAST_NAMES
    for node in nodes:
        if not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if (node.attr not in _LAST_NAMES) if isinstance(node, ast.Attribute) else (node.id not in imported):
            continue
        old = _deprecated_name(module, node)
        if old is None or _REPLACEMENTS[old].since > torch_version or is_gated(module, node):
            continue
        parent = module.parent(node)
        called = isinstance(parent, ast.Call) and parent.func is node
        yield Use(parent if called else node, node, old, _REPLACEMENTS[old])  # type: ignore[arg-type]


def _deprecated_name(module: Module, node: ast.expr) -> str | None:
    """The deprecated thing that a name stands for, if it stands for nothing else, by an import that is no fallback."""
    names = module.names(node)
    if len(names) != 1 or names[0] not in _REPLACEMENTS:
        return None
    aliases = _aliases(module, node)
    if not all(isinstance(alias, ast.alias) and not is_gated(module, alias) for alias in aliases):
        return None
    return names[0]


def _aliases(module: Module, name: ast.expr) -> list[ast.AST]:
    """What binds the first name of a dotted expression; nothing for one of a star import."""
    root = _root(name)
    found = module.lookup(root.id, root)
    return found[1] if found else []


def _root(name: ast.expr) -> ast.Name:
    while isinstance(name, ast.Attribute):
        name = name.value
    assert isinstance(name, ast.Name)
    return name


# -- the fixes -------------------------------------------------------------------------------------------------------


def modernised(module: Module, uses: list[Use]) -> dict[int, Fix]:
    """The fix of each use, by the identity of its node: all that hang on one import statement have the same."""
    groups: dict[ast.stmt | None, list[Use]] = {}
    for use in uses:
        groups.setdefault(_import_to_rewrite(module, use), []).append(use)
    fixes: dict[int, Fix] = {}
    for statement, members in groups.items():
        if statement is None:
            for use in members:
                fixes |= _fix_of([use], _edits(module, use, _spelling(module, use)))
        else:
            fixes |= _rewrite(module, statement, members)
    return fixes


def _fix_of(uses: list[Use], edits: tuple[Edit, ...] | None) -> dict[int, Fix]:
    if edits is None:
        return {}
    names = dict.fromkeys(use.replacement.spelling for use in uses)
    fix = Fix(f"use {', '.join(names)}", Safety.SAFE, tuple(dict.fromkeys(edits)))
    return {id(use.node): fix for use in uses}


def _import_to_rewrite(module: Module, use: Use) -> ast.stmt | None:
    """The import statement that must change with a use; None where `torch` itself, or a part of it, is imported."""
    for alias in _aliases(module, use.name):
        statement = module.statement(alias)
        assert isinstance(alias, ast.alias)
        if isinstance(statement, ast.ImportFrom):
            target = f"{statement.module}.{alias.name}"
            if target in _REPLACEMENTS or _namespace(target):
                return statement
        elif _namespace(alias.name):
            return statement
    return None


def _namespace(dotted: str) -> str | None:
    """The namespace that takes the place of an old one or of a module in it."""
    for old, new in _NAMESPACES.items():
        if dotted == old or dotted.startswith(f"{old}."):
            return new
    return None


def _rewrite(module: Module, statement: ast.stmt, uses: list[Use]) -> dict[int, Fix]:
    """One fix for the statement and all uses of those of its names whose every use can follow."""
    assert isinstance(statement, ast.Import | ast.ImportFrom)
    changed: dict[str, str] = {}
    edits: list[Edit] = []
    followed: list[Use] = []
    for alias in statement.names:
        own = [use for use in uses if alias in _aliases(module, use.name)]
        new = _new_import(statement, alias)
        if new is None:
            continue
        local = alias.asname or (new.rpartition(".")[2] if isinstance(statement, ast.ImportFrom) else new)
        made = [_edits(module, use, _followed(module, use, alias, local)) for use in own]
        if any(edit is None for edit in made) or not _is_followed_everywhere(module, statement, alias, own):
            continue
        changed[alias.name] = new
        followed += own
        edits += [edit for group in made for edit in group or ()]
    if not followed:
        return {}
    return _fix_of(followed, (_changed_import(module, statement, changed), *edits))


def _new_import(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> str | None:
    """The dotted name that is imported instead of an alias's; None for one that stays."""
    if isinstance(statement, ast.Import):
        return _namespace(alias.name)
    target = f"{statement.module}.{alias.name}"
    if target in _REPLACEMENTS:
        return _REPLACEMENTS[target].name
    return _namespace(target)


def _followed(module: Module, use: Use, alias: ast.alias, local: str) -> str:
    """How a use is spelled once its import has changed and binds `local`."""
    if isinstance(use.name, ast.Name):
        return local
    last = use.replacement.name.rpartition(".")[2]
    return f"{local}.{last}" if alias.asname or "." not in local else use.replacement.name


def _is_followed_everywhere(
    module: Module, statement: ast.Import | ast.ImportFrom, alias: ast.alias, uses: list[Use]
) -> bool:
    """Whether every mention of what `alias` binds is one of `uses`, and no other file may rely on it."""
    local = alias.asname or alias.name.partition(".")[0]
    if isinstance(statement, ast.Import) and alias.asname is None:
        return _every_mention_is_used(module, alias.name, uses)
    if module.source.path.name == "__init__.py" or local in _exported(module):
        return False
    used = {id(_root(use.name)) for use in uses}
    mentions = [n for n in ast.walk(module.tree) if isinstance(n, ast.Name) and n.id == local]
    return all(id(n) in used for n in mentions if alias in _aliases(module, n))


def _every_mention_is_used(module: Module, namespace: str, uses: list[Use]) -> bool:
    """Whether the namespace that `import torch.cuda.amp` makes known is mentioned by `uses` alone."""
    used = {id(node) for use in uses for node in ast.walk(use.name)}
    attributes = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
    return all(id(node) in used for node in attributes if namespace in module.names(node))


def _exported(module: Module) -> set[str]:
    """The names in `__all__`."""
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in statement.targets):
            return {
                n.value for n in ast.walk(statement.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            }
    return set()


def _changed_import(module: Module, statement: ast.Import | ast.ImportFrom, changed: dict[str, str]) -> Edit:
    """The statement with the names in `changed` imported from elsewhere: in a statement of their own if others stay."""
    place = layout(module)
    start, end = place.span(statement)
    text = module.source.text[start:end]
    if isinstance(statement, ast.Import):
        return Edit(start, end, import_of(text, changed))
    names = {old: new.rpartition(".")[2] for old, new in changed.items()}
    home = next(iter(changed.values())).rpartition(".")[0]
    if len(changed) == len(statement.names) or home == statement.module:
        return Edit(start, end, import_from(text, home, names))
    moved = ", ".join(
        names[alias.name] + (f" as {alias.asname}" if alias.asname else "")
        for alias in statement.names
        if alias.name in changed
    )
    is_alone = place.starts_line(statement) and place.ends_line(statement)
    joint = f"{module.source.newline}{place.indentation(statement)}" if is_alone else "; "
    return Edit(start, end, f"{without_names(text, changed)}{joint}from {home} import {moved}")


def _spelling(module: Module, use: Use) -> tuple[str, tuple[Edit, ...]] | str:
    """How the new name is written where the import stays."""
    root = _root(use.name)
    if module.name(root) == "torch":
        return f"{root.id}{use.replacement.name.removeprefix('torch')}"
    return add_import(module, use.replacement.name, use.name)


def _edits(module: Module, use: Use, spelling: str | tuple[str, tuple[Edit, ...]]) -> tuple[Edit, ...] | None:
    """The edits at one use; None where the new name cannot stand in its place."""
    spelling, imports = (spelling, ()) if isinstance(spelling, str) else spelling
    replacement = use.replacement
    device = f'"{replacement.device}"'
    renamed = Edit(*module.source.span(use.name), spelling)
    call = use.node if isinstance(use.node, ast.Call) else None
    if call is not None:
        arguments = _with_device(module, call, replacement)
        return None if arguments is None else (*imports, renamed, *arguments)
    if replacement.kind is Kind.DECORATOR and _is_decorator(module, use.node):
        return (*imports, Edit(renamed.start, renamed.end, f"{spelling}(device_type={device})"))
    parent = module.parent(use.node)
    if (
        isinstance(parent, ast.Call)
        and module.is_named(parent.func, "functools.partial")
        and parent.args[0] is use.node
    ):
        named = _named_arguments(module, parent, 1, replacement)
        if replacement.kind is not Kind.DECORATOR and named is not None:
            return (*imports, Edit(renamed.start, renamed.end, f"{spelling}, {device}"), *named)
    if _is_type(module, use.node):
        return (*imports, renamed)
    if replacement.kind is Kind.AUTOCAST and _is_chosen_and_called(module, use.node):
        partial, partial_imports = add_import(module, "functools.partial", use.node)
        return (*imports, *partial_imports, Edit(renamed.start, renamed.end, f"{partial}({spelling}, {device})"))
    return None


def _with_device(module: Module, call: ast.Call, replacement: Replacement) -> tuple[Edit, ...] | None:
    device = f'"{replacement.device}"'
    if replacement.kind is Kind.DECORATOR:
        if call.args:
            return set_argument(module, call, "device_type", device)
        return prepend_argument(module, call, f"device_type={device}")
    named = _named_arguments(module, call, 0, replacement)
    return None if named is None else (*prepend_argument(module, call, device), *named)


def _named_arguments(module: Module, call: ast.Call, first: int, replacement: Replacement) -> tuple[Edit, ...] | None:
    """The old autocast's positional arguments as keywords; None where a `*` hides which they are."""
    if replacement.kind is not Kind.AUTOCAST:
        return ()
    given = call.args[first:]
    if len(given) > len(_AUTOCAST_PARAMETERS) or any(isinstance(argument, ast.Starred) for argument in given):
        return None
    names = _AUTOCAST_PARAMETERS[: len(given)]
    return tuple(edit for i, name in enumerate(names, first) for edit in name_argument(module, call, i, name))


def _is_chosen_and_called(module: Module, node: ast.expr) -> bool:
    """Whether a name stands in `region = autocast if use_amp else nullcontext`, and `region` is only ever called so
    that the device can go before its arguments."""
    choice = module.parent(node)
    assignment = module.parent(choice) if isinstance(choice, ast.IfExp) and node is not choice.test else None
    if not isinstance(assignment, ast.Assign) or len(assignment.targets) != 1:
        return False
    target = assignment.targets[0]
    if not isinstance(target, ast.Name):
        return False
    mentions = (n for n in ast.walk(module.tree) if isinstance(n, ast.Name) and n.id == target.id)
    return all(_is_called_plainly(module, name) for name in mentions if isinstance(name.ctx, ast.Load))


def _is_called_plainly(module: Module, name: ast.Name) -> bool:
    call = module.parent(name)
    return isinstance(call, ast.Call) and call.func is name and not call.args


def _is_decorator(module: Module, node: ast.expr) -> bool:
    return node in getattr(module.parent(node), "decorator_list", ())


def _is_type(module: Module, node: ast.expr) -> bool:
    """Whether a name stands for the class alone: in an annotation, or as what isinstance asks for."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, ast.arg | ast.AnnAssign):
            return parent.annotation is child
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return parent.returns is child
        if isinstance(parent, ast.Call):
            called = parent.func.attr if isinstance(parent.func, ast.Attribute) else getattr(parent.func, "id", "")
            return called in _TYPE_TESTS and child in parent.args[1:]
        if not isinstance(parent, ast.Subscript | ast.Tuple | ast.BinOp):
            return False
        child = parent
    return False
