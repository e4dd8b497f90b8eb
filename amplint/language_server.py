"""The language server: diagnostics on unsaved text, hovers with the rule's page, quick fixes and fix-all.

Positions of amplint count characters from 1; those of the protocol count from 0 in the units the client asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import TextDocument

from amplint import __version__
from amplint.config import ConfigError, Settings, load
from amplint.discovery import surroundings
from amplint.fix import fix_source
from amplint.linked import linked
from amplint.pages import page
from amplint.pipeline import Checked, Linter, Plan
from amplint.registry import find
from amplint.reporters import url
from amplint.rule import Edit, Finding, Position, Safety, Severity, offers
from amplint.source import Source

FIX_ALL = "source.fixAll.amplint"
_TYPING_PAUSE = 0.2
"""Seconds without a keystroke before the text is judged."""

_SEVERITY = {
    Severity.ERROR: lsp.DiagnosticSeverity.Error,
    Severity.WARNING: lsp.DiagnosticSeverity.Warning,
    Severity.INFO: lsp.DiagnosticSeverity.Information,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found in one version of a document."""

    version: int | None
    checked: Checked


class AmplintServer(LanguageServer):
    """A language server that remembers, for each open document, what was found in its present text."""

    def __init__(self) -> None:
        super().__init__("amplint", __version__)
        self.judged: dict[str, Judged] = {}
        self.linters: dict[Path, tuple[Settings, Linter]] = {}
        """One for each open file, which keeps what it has read of the files that are linked with it."""
        self.pending: dict[str, asyncio.TimerHandle] = {}

    # -- judging -----------------------------------------------------------------------------------------------

    def judge(self, document: TextDocument) -> Checked:
        """The findings in a document as it stands in the editor, the other open documents included."""
        known = self.judged.get(document.uri)
        if known is None or known.version != document.version:
            known = Judged(document.version, self._check(document))
            self.judged[document.uri] = known
        return known.checked

    def linter(self, path: Path) -> tuple[Linter, Settings]:
        """A linter for one file, that reads open documents from the editor. Raises ConfigError."""
        settings = load([path])
        known, linter = self.linters.get(path, (None, None))
        if linter is None or known != settings:
            linter = self._new_linter(path, settings)
            self.linters[path] = settings, linter
        for document in self.workspace.text_documents.values():
            if name := _path(document):
                linter.replace(name, document.source.encode())
        return linter, settings

    def _new_linter(self, path: Path, settings: Settings) -> Linter:
        def project() -> list[Path]:
            return linked([path], surroundings([path], [path], settings.excludes), linter.links)

        linter = Linter(project, Plan(settings.codes, settings.options, settings.ignored_in))
        return linter

    def _check(self, document: TextDocument) -> Checked:
        path = _path(document)
        if path is None:
            return Checked(None)
        try:
            linter, settings = self.linter(path)
            if settings.excludes.match_any(path):
                return Checked(None)
            return linter.check(path)
        except (ConfigError, ValueError) as error:
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, f"amplint: {error}"))
            return Checked(None)

    def publish(self, uri: str) -> None:
        """Judge a document and send its diagnostics."""
        self.pending.pop(uri, None)
        document = self.workspace.get_text_document(uri)
        checked = self.judge(document)
        diagnostics = [self.diagnostic(document, finding) for finding in checked.findings]
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, diagnostics, document.version))

    def publish_soon(self, uri: str) -> None:
        """Judge a document once its author pauses."""
        if uri in self.pending:
            self.pending[uri].cancel()
        self.pending[uri] = asyncio.get_running_loop().call_later(_TYPING_PAUSE, self.publish, uri)

    # -- translation -------------------------------------------------------------------------------------------

    def range(self, document: TextDocument, start: Position, end: Position) -> lsp.Range:
        """A span in the protocol's units."""
        whole = lsp.Range(_zero_based(start), _zero_based(end))
        return document.position_codec.range_to_client_units(document.lines, whole)

    def diagnostic(self, document: TextDocument, finding: Finding) -> lsp.Diagnostic:
        related = [
            lsp.DiagnosticRelatedInformation(self._location(document, place.path, place.start), place.message)
            for place in finding.related
        ]
        return lsp.Diagnostic(
            range=self.range(document, finding.start, finding.end),
            message=finding.message,
            severity=_SEVERITY[finding.severity],
            code=finding.code,
            code_description=lsp.CodeDescription(url(finding.code)),
            source="amplint",
            related_information=related or None,
        )

    def text_edits(self, document: TextDocument, source: Source, edits: tuple[Edit, ...]) -> list[lsp.TextEdit]:
        return [
            lsp.TextEdit(
                self.range(document, source.position(edit.start), source.position(edit.end)),
                edit.text,
            )
            for edit in edits
        ]

    def _location(self, document: TextDocument, path: Path, start: Position) -> lsp.Location:
        uri = document.uri if path == _path(document) else from_fs_path(str(path)) or document.uri
        other = self.workspace.get_text_document(uri)
        return lsp.Location(uri, self.range(other, start, start))


def create() -> AmplintServer:
    """A server with all its features, not started."""
    server = AmplintServer()
    for method, handler in _FEATURES.items():
        server.feature(method)(_bound(server, handler))
    server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix, FIX_ALL]),
    )(_bound(server, _code_actions))
    return server


def _bound(server: AmplintServer, handler: Callable[..., object]) -> Callable[..., object]:
    return lambda params: handler(server, params)


# -- features --------------------------------------------------------------------------------------------------


def _opened(server: AmplintServer, params: lsp.DidOpenTextDocumentParams) -> None:
    server.publish(params.text_document.uri)


def _changed(server: AmplintServer, params: lsp.DidChangeTextDocumentParams) -> None:
    server.publish_soon(params.text_document.uri)


def _saved(server: AmplintServer, params: lsp.DidSaveTextDocumentParams) -> None:
    """A saved file can move a region that reaches other open ones."""
    server.judged.clear()
    server.linters.clear()
    for uri in list(server.workspace.text_documents):
        server.publish(uri)


def _closed(server: AmplintServer, params: lsp.DidCloseTextDocumentParams) -> None:
    uri = params.text_document.uri
    server.judged.pop(uri, None)
    server.linters.clear()
    if uri in server.pending:
        server.pending.pop(uri).cancel()
    server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


def _hover(server: AmplintServer, params: lsp.HoverParams) -> lsp.Hover | None:
    """The page of the rules whose findings cover the place."""
    document = server.workspace.get_text_document(params.text_document.uri)
    codes = dict.fromkeys(
        finding.code
        for finding in server.judge(document).findings
        if _covers(server.range(document, finding.start, finding.end), params.position)
    )
    pages = []
    for code in codes:
        with contextlib.suppress(ValueError):
            pages.append(page(find(code)))
    if not pages:
        return None
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n---\n\n".join(pages)))


def _code_actions(server: AmplintServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """Quick fixes of the findings in the range, safe ones preferred, and fix-all for the document."""
    document = server.workspace.get_text_document(params.text_document.uri)
    checked = server.judge(document)
    wanted = params.context.only
    actions: list[lsp.CodeAction] = []
    if checked.source is not None and _asks_for(wanted, lsp.CodeActionKind.QuickFix):
        actions += _quick_fixes(server, document, checked, params.range)
    if _asks_for(wanted, FIX_ALL) and (action := _fix_all(server, document, checked)):
        actions.append(action)
    return actions


def _quick_fixes(
    server: AmplintServer, document: TextDocument, checked: Checked, wanted: lsp.Range
) -> Iterator[lsp.CodeAction]:
    assert checked.source is not None
    for finding in checked.findings:
        place = server.range(document, finding.start, finding.end)
        for fix in offers(finding) if _overlap(place, wanted) else ():
            safe = fix.safety is Safety.SAFE
            yield lsp.CodeAction(
                title=f"{finding.code}: {fix.message}{'' if safe else ' (unsafe)'}",
                kind=lsp.CodeActionKind.QuickFix,
                diagnostics=[server.diagnostic(document, finding)],
                is_preferred=safe,
                edit=_workspace_edit(document, server.text_edits(document, checked.source, fix.edits)),
            )


def _fix_all(server: AmplintServer, document: TextDocument, checked: Checked) -> lsp.CodeAction | None:
    """All safe fixes of the document, to the fixpoint, as one edit."""
    path = _path(document)
    if path is None or checked.source is None or not any(_is_safe(finding) for finding in checked.findings):
        return None
    linter, _ = server.linter(path)

    def findings(source: Source) -> tuple[Finding, ...]:
        linter.replace(path, source.to_bytes(source.text))
        return linter.check(path).findings

    result = fix_source(checked.source, findings, unsafe=False)
    linter.replace(path, checked.source.to_bytes(checked.source.text))
    if result.text == checked.source.text:
        return None
    whole = Edit(0, len(checked.source.text), result.text)
    return lsp.CodeAction(
        title=f"Fix all: {len(result.fixed)} safe fix{'es' * (len(result.fixed) != 1)} of amplint",
        kind=FIX_ALL,
        edit=_workspace_edit(document, server.text_edits(document, checked.source, (whole,))),
    )


_FEATURES: dict[str, Callable[..., object]] = {
    lsp.TEXT_DOCUMENT_DID_OPEN: _opened,
    lsp.TEXT_DOCUMENT_DID_CHANGE: _changed,
    lsp.TEXT_DOCUMENT_DID_SAVE: _saved,
    lsp.TEXT_DOCUMENT_DID_CLOSE: _closed,
    lsp.TEXT_DOCUMENT_HOVER: _hover,
}


# -- helpers ---------------------------------------------------------------------------------------------------


def _path(document: TextDocument) -> Path | None:
    """The file of a document; None for one that has none, or is no Python file."""
    name = to_fs_path(document.uri)
    return Path(name) if name and name.endswith(".py") else None


def _is_safe(finding: Finding) -> bool:
    return finding.fix is not None and finding.fix.safety is Safety.SAFE


def _workspace_edit(document: TextDocument, edits: list[lsp.TextEdit]) -> lsp.WorkspaceEdit:
    versioned = lsp.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
    return lsp.WorkspaceEdit(document_changes=[lsp.TextDocumentEdit(versioned, list(edits))])


def _asks_for(wanted: object, kind: str) -> bool:
    """Whether a client that asks for `wanted` kinds (None: all) means `kind`; kinds are prefixes at dots."""
    if not isinstance(wanted, list | tuple) or not wanted:
        return wanted is None
    return any(kind == str(getattr(w, "value", w)) or kind.startswith(f"{getattr(w, 'value', w)}.") for w in wanted)


def _zero_based(position: Position) -> lsp.Position:
    return lsp.Position(position.line - 1, position.column - 1)


def _covers(place: lsp.Range, position: lsp.Position) -> bool:
    return place.start <= position <= place.end


def _overlap(one: lsp.Range, other: lsp.Range) -> bool:
    return one.start <= other.end and other.start <= one.end
