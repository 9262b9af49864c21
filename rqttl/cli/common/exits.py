"""Exit codes, and the errors that end a command with one of them."""

from __future__ import annotations

import click

from rqttl import errors

DONE, BUG, USAGE, REFUSED, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


class Refused(click.ClickException):
    """A command was refused, wholly or in part. The message names the part, `code` is the word of the library."""

    def __init__(self, message: str, code: str = "", exit_code: int = REFUSED) -> None:
        super().__init__(f"{message} [{code}]" if code else message)
        self.exit_code = exit_code  # type: ignore[misc]  # click asks the instance


def exit_code(kind: type[errors.RqttlError]) -> int:
    """The exit code for an error of the library."""
    if issubclass(kind, errors.ContractError):
        return BUG
    if issubclass(kind, errors.InvalidInput) and not issubclass(kind, errors.MessageTooLarge):
        return USAGE
    if issubclass(kind, (errors.EmbeddedUnavailable, errors.OutcomeUnknown)):
        return UNREACHABLE
    return REFUSED
