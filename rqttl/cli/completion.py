"""`rqttl completion`: what a shell needs to complete commands, options and the names of queues."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from rqttl.cli.common import output
from rqttl.cli.common.settings import debug_flag


@click.command(epilog="\b\nExample: rqttl completion bash")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@debug_flag
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a SHELL complete rqttl: bash, zsh or fish.

    Commands, options, their values, and the names of queues: those of the
    Redis in use, if it answers within a second.

    \b
    bash: put this line into ~/.bashrc
      eval "$(rqttl completion bash)"
    zsh: put this line into ~/.zshrc, after compinit
      eval "$(rqttl completion zsh)"
    fish: run this once
      rqttl completion fish > ~/.config/fish/completions/rqttl.fish
    """  # noqa: D301  # \\b is for click: the lines below stay lines
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101  # click has all three
    output.answer(made(context.find_root().command, {}, "rqttl", "_RQTTL_COMPLETE").source().rstrip("\n"))


@add_completion_class
class Bash(BashComplete):
    """Completion for bash, also of names with a colon, at which bash begins a new word.

    So the line is read as a whole, and of each answer only what follows the last colon is given.
    """

    source_template = r"""%(complete_func)s() {
    local said
    COMPREPLY=()
    while IFS= read -r said; do
        case $said in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${said#plain,}") ;;
        esac
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
        %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._cut = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        """The whole words before the cursor, and the one that is half typed."""
        end = "\x00"  # shows whether the cursor is behind a word or in it
        *words, begun = split_arg_string(os.environ["COMP_LINE"] + end)
        begun = begun.removesuffix(end)
        if ":" in os.environ.get("COMP_WORDBREAKS", ""):
            self._cut = begun.rpartition("=")[2].rfind(":") + 1
        return words[1:], begun

    def format_completion(self, item: CompletionItem[str]) -> str:
        """A line of the answer."""
        return f"{item.type},{item.value[self._cut :]}"
