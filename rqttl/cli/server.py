"""`rqttl server`: the embedded Redis in the foreground."""

from __future__ import annotations

import os

import click

from rqttl.cli.common import output
from rqttl.cli.common.params import debug_flag, json_flag
from rqttl.cli.common.settings import Settings
from rqttl.embedded.folder import SCHEME, folder_of
from rqttl.embedded.server import serve


@click.command(epilog="\b\nExample: rqttl server --folder ./data")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="PATH",
    help="Folder of its data.  [default: the folder of the URL, else the one that all commands share]",
)
@json_flag
@click.option("--url", metavar="URL", help="Folder of its data, as a URL: embedded:///folder.")
@debug_flag
@click.pass_obj
def server(settings: Settings, folder: str | None, as_json: bool, url: str | None) -> int:
    """Run the embedded Redis in the foreground.

    The command prints its URL, and ends with Ctrl-C or SIGTERM. Commands
    without --url start and stop the server by themselves; `rqttl server` keeps
    it running between them. The server goes on while other processes use it.
    """
    url = url or settings.url
    if folder and url:
        raise click.UsageError("give --folder or --url, not both")

    def print_url(at: str) -> None:
        if as_json:
            output.answer_json({"url": at})
        else:
            output.answer(at)
        output.note("ready; Ctrl-C ends it")

    if not folder:
        if url is not None and not url.startswith(SCHEME):
            raise click.UsageError("--url: this runs the embedded Redis; expected embedded:///folder")
        url = url or os.environ.get("RQTTL_URL") or SCHEME
        if url.startswith(SCHEME):
            folder = folder_of(url)
        else:
            output.note("$RQTTL_URL names another Redis: commands will use that one, unless --url says otherwise")
    return serve(folder, on_ready=print_url)
