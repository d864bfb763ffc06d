"""The command line: thin Typer commands over the libraries. Layer: top."""

from tooling.cli.app import entry, main

__all__ = ["entry", "main"]
