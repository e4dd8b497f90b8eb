"""The language server, spoken to by a real client over standard input and output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("pygls")

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

FAULTY = """\
import torch


def loss(logits, y):
    näh = "ä"; p = torch.softmax(logits, dim=-1)
    return torch.nn.functional.nll_loss(torch.log(p), y)
"""
CLEAN = FAULTY.replace("torch.log(p)", "torch.log_softmax(logits, dim=-1)")
PROTOCOL = """\
import torch


def train(model, opt, scaler, loader):
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""


class Client(LanguageClient):
    """A client that keeps the diagnostics it is sent."""

    def __init__(self) -> None:
        super().__init__("test-client", "1")
        self.diagnostics: dict[str, list[lsp.Diagnostic]] = {}
        self.arrived = asyncio.Event()
        self.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self._keep(params))

    def _keep(self, params: lsp.PublishDiagnosticsParams) -> None:
        self.diagnostics[params.uri] = list(params.diagnostics)
        self.arrived.set()

    async def next_diagnostics(self, uri: str) -> list[lsp.Diagnostic]:
        await asyncio.wait_for(self.arrived.wait(), 30)
        self.arrived.clear()
        return self.diagnostics[uri]

    def open(self, path: Path, text: str) -> str:
        uri = path.as_uri()
        self.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "python", 1, text)))
        return uri

    def change(self, uri: str, version: int, text: str) -> None:
        self.text_document_did_change(
            lsp.DidChangeTextDocumentParams(
                lsp.VersionedTextDocumentIdentifier(version, uri),
                [lsp.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def actions(self, uri: str, line: int, only: list[str] | None = None) -> list[lsp.CodeAction]:
        place = lsp.Position(line, 0)
        found = await self.text_document_code_action_async(
            lsp.CodeActionParams(
                lsp.TextDocumentIdentifier(uri),
                lsp.Range(place, lsp.Position(line, 200)),
                lsp.CodeActionContext([], only=only),  # type: ignore[arg-type]
            )
        )
        return [action for action in found or [] if isinstance(action, lsp.CodeAction)]


def session(talk: Callable[[Client], Awaitable[None]], folder: Path) -> None:
    """Start the server, shake hands, talk, and shut it down."""

    async def run() -> None:
        client = Client()
        await client.start_io(sys.executable, "-m", "amplint", "server")
        await client.initialize_async(lsp.InitializeParams(lsp.ClientCapabilities(), root_uri=folder.as_uri()))
        client.initialized(lsp.InitializedParams())
        try:
            await talk(client)
        finally:
            await client.shutdown_async(None)
            client.exit(None)
            await client.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def applied(text: str, action: lsp.CodeAction) -> str:
    """The text after the edits of an action, applied as an editor does: from the last to the first."""
    assert action.edit is not None
    assert action.edit.document_changes
    (change,) = action.edit.document_changes
    assert isinstance(change, lsp.TextDocumentEdit)
    lines = text.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    edits = sorted(
        (e for e in change.edits if isinstance(e, lsp.TextEdit)),
        key=lambda edit: (edit.range.start.line, edit.range.start.character),
    )
    for edit in reversed(edits):
        start = starts[edit.range.start.line] + edit.range.start.character
        end = starts[edit.range.end.line] + edit.range.end.character
        text = text[:start] + edit.new_text + text[end:]
    return text


def test_diagnostics_follow_the_unsaved_text(tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        uri = client.open(tmp_path / "loss.py", FAULTY)
        (diagnostic,) = await client.next_diagnostics(uri)
        assert (diagnostic.code, diagnostic.range.start.line) == ("AMP101", 5)
        assert diagnostic.range.start.character == FAULTY.splitlines()[5].index("torch.log")
        client.change(uri, 2, CLEAN)
        assert await client.next_diagnostics(uri) == []

    session(talk, tmp_path)


def test_a_hover_shows_the_page_of_the_rule(tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        uri = client.open(tmp_path / "loss.py", FAULTY)
        (diagnostic,) = await client.next_diagnostics(uri)
        where = lsp.TextDocumentIdentifier(uri)
        hover = await client.text_document_hover_async(lsp.HoverParams(where, diagnostic.range.start))
        assert hover is not None
        assert isinstance(hover.contents, lsp.MarkupContent)
        assert hover.contents.value.startswith("# AMP101 log-softmax")
        assert await client.text_document_hover_async(lsp.HoverParams(where, lsp.Position(0, 0))) is None

    session(talk, tmp_path)


def test_quick_fixes_and_fix_all(tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        uri = client.open(tmp_path / "loss.py", FAULTY)
        await client.next_diagnostics(uri)
        safe, unsafe = await client.actions(uri, 5, only=["quickfix"])
        assert (safe.is_preferred, unsafe.is_preferred) == (True, False)
        assert "torch.log_softmax(logits, dim=-1)" in applied(FAULTY, safe)
        assert "cross_entropy(logits, y)" in applied(FAULTY, unsafe)
        (everything,) = await client.actions(uri, 0, only=["source.fixAll"])
        client.change(uri, 2, applied(FAULTY, everything))
        assert await client.next_diagnostics(uri) == []
        assert await client.actions(uri, 0) == []

    session(talk, tmp_path)


def test_unsafe_fixes_say_so_and_stay_out_of_fix_all(tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        uri = client.open(tmp_path / "train.py", PROTOCOL)
        diagnostics = await client.next_diagnostics(uri)
        assert "AMP202" in {diagnostic.code for diagnostic in diagnostics}
        line = PROTOCOL.splitlines().index("        scaler.step(opt)")
        quick = [a for a in await client.actions(uri, line) if a.title.startswith("AMP202")]
        assert [(a.title.endswith("(unsafe)"), a.is_preferred) for a in quick] == [(True, False)]
        assert "clip_grad_norm_" in applied(PROTOCOL, quick[0])
        assert await client.actions(uri, line, only=["source.fixAll.amplint"]) == []

    session(talk, tmp_path)


def test_a_broken_file_and_other_kinds_of_documents(tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        uri = client.open(tmp_path / "broken.py", "import torch\nscaler.step(opt\n")
        (diagnostic,) = await client.next_diagnostics(uri)
        assert diagnostic.code == "AMP000"
        assert await client.next_diagnostics(client.open(tmp_path / "notes.md", "# torch.log(softmax)")) == []

    session(talk, tmp_path)
