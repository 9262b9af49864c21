"""Every error that the data source raises of its own accord. Spark wraps them; their text survives in its traceback.

A text begins with its code in brackets, names the option, the value and the rule, and never holds a secret.
"""

from __future__ import annotations

from rqttl.errors import RqttlError


class SourceError(RqttlError):
    """Root of the errors of the data source. The text begins with `[code]`, also after pickling."""

    code = "RQTTL_ERROR"

    def __init__(self, text: str) -> None:
        super().__init__(text if text.startswith("[RQTTL_") else f"[{self.code}] {text}")


class UnknownOption(SourceError):
    """An option has no meaning here: it is misspelt, or belongs to another kind of job."""

    code = "RQTTL_UNKNOWN_OPTION"


class InvalidOption(SourceError):
    """The value of an option breaks its rule, or two options contradict each other."""

    code = "RQTTL_INVALID_OPTION"


class InvalidSchema(SourceError):
    """A schema given by the user has a column that is not known, or one of another type."""

    code = "RQTTL_INVALID_SCHEMA"


class InvalidOffset(SourceError):
    """An offset in a checkpoint is not one that this version wrote."""

    code = "RQTTL_INVALID_OFFSET"


class NoSuchQueue(SourceError):
    """A queue that `queues` names does not exist."""

    code = "RQTTL_QUEUE_NOT_FOUND"


class Unreachable(SourceError):
    """Redis does not answer at `url`, or not in time, also after the retries."""

    code = "RQTTL_UNREACHABLE"


class NotAuthenticated(SourceError):
    """Redis refuses `username` and the password."""

    code = "RQTTL_AUTHENTICATION"


class NoPermission(SourceError):
    """The user may not run a command, or not on the keys of `namespace`."""

    code = "RQTTL_NO_PERMISSION"


class RefusedByRedis(SourceError):
    """Redis answered a command with an error that has no class of its own."""

    code = "RQTTL_REDIS_ERROR"


class MalformedEntry(SourceError):
    """An entry of a log is not one that rqttl wrote."""

    code = "RQTTL_MALFORMED_ENTRY"


class DataLoss(SourceError):
    """Messages were removed by retention, a limit or a purge before this job could read them."""

    code = "RQTTL_DATA_LOSS"


class SaveMode(SourceError):
    """Rows can only be appended: nothing is replaced, and no table is there or not there."""

    code = "RQTTL_SAVE_MODE"


class QueueIsFull(SourceError):
    """A queue holds `maxQueueDepth` messages, and `onFull` says not to wait, or `fullTimeout` is over."""

    code = "RQTTL_QUEUE_FULL"


class OutOfMemory(SourceError):
    """Redis takes no messages because it has no memory left for them, also after `fullTimeout`."""

    code = "RQTTL_OUT_OF_MEMORY"


class RowsRefused(SourceError):
    """Some rows could not be written, and `onRefused` says that the job fails then. All others were written."""

    code = "RQTTL_ROWS_REFUSED"
