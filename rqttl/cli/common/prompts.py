"""Questions before something is destroyed."""

from __future__ import annotations

import sys

import click

from rqttl.cli.common.exits import Refused

yes_flag = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
dry_run_flag = click.option("--dry-run", is_flag=True, help="Show the changes without making them.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `yes`. Raises `Refused` if the answer is no, `UsageError` if there is no terminal to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("no terminal for the question: use --yes to go on, or --dry-run to see the changes")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as aborted:
        click.echo(err=True)  # ends the line of the question
        if not isinstance(aborted.__context__, EOFError):
            raise
        agreed = False
    if not agreed:
        raise Refused("nothing was done")
