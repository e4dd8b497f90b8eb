"""Numbers that a configuration gives: what an option is where nobody asks for another number.

`args.eps` of a command line, `cfg.get("eps", 1e-8)`, `getattr(cfg, "eps", 1e-8)`: a run may well set them otherwise, so
each is a "setting" with a default, never the constant itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amplint.tree import Module
from amplint.values.site import Given, Site, known, merged
from amplint.values.value import Alternatives, Argument, Value

NAMESPACE = "argparse.Namespace"
_PARSERS = ("argparse.ArgumentParser", "configargparse.ArgumentParser", "configargparse.ArgParser")
_LOOKUPS = ("get", "pop", "setdefault")
_RECORDS = frozenset(
    "types.SimpleNamespace easydict.EasyDict addict.Dict omegaconf.OmegaConf.create ml_collections.ConfigDict".split()
) | {NAMESPACE}
"""What makes an object whose attributes are the keywords, or the items of the dict, that it is given."""


def parsed(site: Site, node: ast.Call, name: str, parser: Value) -> Alternatives:
    """What parsing a command line gives; () for what is no such call."""
    if parser.dotted not in _PARSERS or name not in ("parse_args", "parse_known_args"):
        return ()
    namespace = (site.value(node, "python", dotted=NAMESPACE, elements=(known((parser,)),)),)
    if name == "parse_args":
        return namespace
    rest = known((site.value(node, "python"),))
    return (site.value(node, "tuple", elements=(known(namespace), rest)),)


def attribute(site: Site, node: ast.expr, name: str, record: Value) -> Alternatives:
    """`args.eps`: the defaults of that option, or what a record was made with; () where it is not known."""
    if record.dotted not in _RECORDS:
        return ()
    if (given := record.arguments.get(name)) is not None:
        return site.engine.of_argument(given)
    first = [v for argument in record.elements[:1] for v in site.engine.of_argument(argument)]
    held = [item for v in first if v.op == "dict" and (item := v.arguments.get(repr(name)))]
    if held:
        return merged(v for item in held for v in site.engine.of_argument(item))
    return merged(s for v in first if v.dotted in _PARSERS for s in _of_command_line(site, node, name, v, record))


def looked_up(site: Site, node: ast.expr, method: str, base: Value, given: Given) -> Alternatives:
    """`cfg.get("eps", 1e-8)` of a mapping that is not known; () for what is no such call, or gives no number."""
    if method not in _LOOKUPS or len(given.positional) != 2 or base.op not in ("parameter", "unknown", "python"):
        return ()
    return setting(site, node, given.positional[1])


def setting(site: Site, node: ast.expr, default: Argument) -> Alternatives:
    """A number that may be set elsewhere; () if the default is no number, or 0: that stands in for tensors too."""
    values = site.engine.of_argument(default)
    if not values or not all(value.as_number() for value in values):
        return ()
    return (site.value(node, "setting", default=default),)


def _of_command_line(site: Site, node: ast.expr, name: str, parser: Value, namespace: Value) -> Iterator[Value]:
    """The option as the parser's file adds it, else the file that parses, else any file of the project."""
    engine = site.engine
    files = ([parser.module], [namespace.module], engine.project.modules_with("add_argument"))
    for modules in files:
        found = [(module, default) for module in modules for default in _options(site, module).get(name, ())]
        if found:
            for module, default in found:
                yield from setting(site, node, site.at(module, engine.base(module, default)).argument(default))
            return


def _options(site: Site, module: Module) -> dict[str, list[ast.expr]]:
    """The defaults of the options that a file adds to any parser, by name."""
    return site.engine.remember(("options", module.tree), lambda: _find_options(module), dict)


def _find_options(module: Module) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for call in module.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        keywords = {k.arg: k.value for k in call.keywords if k.arg is not None}
        if call.func.attr == "set_defaults":
            for name, default in keywords.items():
                found.setdefault(name, []).append(default)
        elif call.func.attr == "add_argument" and (name := _destination(call, keywords)) and "default" in keywords:
            found.setdefault(name, []).append(keywords["default"])
    return found


def _destination(call: ast.Call, keywords: dict[str, ast.expr]) -> str:
    """The attribute in which an option is kept."""
    names = [a.value for a in (keywords.get("dest"), *call.args) if isinstance(a, ast.Constant)]
    spelled = [name for name in names if isinstance(name, str)]
    if not spelled:
        return ""
    chosen = spelled[0] if "dest" in keywords else next((n for n in spelled if n.startswith("--")), spelled[0])
    return chosen.lstrip("-").replace("-", "_")
