"""`rqttl completion`: the script with which a shell completes commands, options and names of queues."""

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


@add_completion_class
class Bash(BashComplete):
    """Completion for bash, also of names with a colon. Bash begins a new word at a colon.

    So this class reads the whole line, and of each answer it prints only the part behind the last colon.
    """

    source_template = r"""%(complete_func)s() {
    local answer
    COMPREPLY=()
    while IFS= read -r answer; do
        case $answer in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${answer#plain,}") ;;
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
        """The words before the cursor, and the half-typed one at it."""
        end = "\x00"  # marks the cursor, which may be behind a word or in it
        *words, half = split_arg_string(os.environ["COMP_LINE"] + end)
        half = half.removesuffix(end)
        if ":" in os.environ.get("COMP_WORDBREAKS", ""):
            self._cut = half.rpartition("=")[2].rfind(":") + 1
        return words[1:], half

    def format_completion(self, item: CompletionItem[str]) -> str:
        """A line of the answer."""
        return f"{item.type},{item.value[self._cut :]}"
