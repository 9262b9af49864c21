"""`rqttl completion`: the script with which a shell completes commands, options and names of queues."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rqttl.cli.common import output
from rqttl.cli.common.params import debug_flag


@click.command(epilog="\b\nExample: rqttl completion bash")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@debug_flag
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a SHELL: bash, zsh or fish.

    The shell then completes commands, options, their values, and the names
    of queues. The names come from the Redis in use, if it answers within a
    second.

    \b
    bash: put this line into ~/.bashrc
      eval "$(rqttl completion bash)"
    zsh: put this line into ~/.zshrc, after compinit
      eval "$(rqttl completion zsh)"
    fish: run this once
      rqttl completion fish > ~/.config/fish/completions/rqttl.fish
    """  # noqa: D301  # \\b is for click: the lines below stay lines
    completer = get_completion_class(shell)
    assert completer is not None  # noqa: S101  # click has all three
    output.answer(completer(context.find_root().command, {}, "rqttl", "_RQTTL_COMPLETE").source().rstrip("\n"))
