"""Questions before something is destroyed."""

from __future__ import annotations

import sys

import click

from rqttl.cli.common.exits import Refused

yes_flag = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
dry_run_flag = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `yes`. Raises `Refused` if the answer is no, `UsageError` if there is no terminal to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: give --yes to do it, or --dry-run to see what it would do")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as aborted:
        click.echo(err=True)  # ends the line of the question
        if not isinstance(aborted.__context__, EOFError):
            raise
        agreed = False
    if not agreed:
        raise Refused("nothing was done")
