"""`amplint server`: serve an editor over standard input and output."""

from __future__ import annotations

import click

from amplint.commands.common import Failure


@click.command("server", short_help="Serve an editor over the language server protocol.")
def command() -> None:
    """Speak the language server protocol on standard input and output. An editor starts this, not a person."""
    try:
        from amplint.language_server import create
    except ImportError:
        raise Failure('the server needs pygls: pip install "amplint[lsp]"') from None
    create().start_io()
