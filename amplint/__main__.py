"""`python -m amplint`, and the entry point of the `amplint` program."""

from __future__ import annotations

from amplint.cli import cli


def main() -> None:
    """Run the command line; ends the process with its exit status."""
    cli(prog_name="amplint")


if __name__ == "__main__":
    main()
