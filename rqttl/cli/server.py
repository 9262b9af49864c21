"""`rqttl server`: the embedded Redis in the foreground."""

from __future__ import annotations

import click

from rqttl import embedded
from rqttl.cli import output


@click.command(epilog="Example: rqttl server --folder ./data")
@click.option("--folder", metavar="PATH", help="Where its data is (default: the one that all commands share).")
def server(folder: str | None) -> int:
    """Run the embedded Redis in the foreground.

    Prints its URL, and ends with Ctrl-C or SIGTERM. Commands without --url start and stop it by themselves; this keeps
    it running between them. It goes on while other processes use it.
    """
    return embedded.serve(folder, on_ready=_tell)


def _tell(url: str) -> None:
    output.answer(url)
    output.note("ready; Ctrl-C ends it")
