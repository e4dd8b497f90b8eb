"""`python -m amplint`, and the entry point of the `amplint` program."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ends the process with its exit status."""
    from amplint.cli import cli

    cli(prog_name="amplint")


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the current folder: what lies there is to be checked, not imported, nor its plug-ins loaded
    main()
