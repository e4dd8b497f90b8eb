"""`amplint explain`: the page of a rule."""

from __future__ import annotations

import click

from amplint.commands.common import Failure, write


@click.command("explain", short_help="Show the page of a rule.")
@click.argument("rule", metavar="CODE|NAME")
def command(rule: str) -> None:
    """Show what a rule finds, why it matters and what its fix does."""
    from amplint.pages import page
    from amplint.registry import RegistryError, UnknownSelectorError, find

    try:
        write(page(find(rule)))
    except (RegistryError, UnknownSelectorError) as error:
        raise Failure(str(error)) from None
