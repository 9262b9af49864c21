"""The errors of the data source. Spark wraps them, and its traceback keeps their texts.

A text begins with a code in brackets; it names the option, the value and the rule, and never contains a secret.
"""

from __future__ import annotations

from rqttl.errors import RqttlError


class SourceError(RqttlError):
    """Base class of the errors of the data source. The text begins with `[code]`, also after pickling."""

    code = "RQTTL_ERROR"

    def __init__(self, text: str) -> None:
        super().__init__(text if text.startswith("[RQTTL_") else f"[{self.code}] {text}")


class UnknownOption(SourceError):
    """An option is misspelt, or belongs to another kind of job."""

    code = "RQTTL_UNKNOWN_OPTION"


class InvalidOption(SourceError):
    """The value of an option breaks its rule, or two options contradict each other."""

    code = "RQTTL_INVALID_OPTION"


class InvalidSchema(SourceError):
    """The schema of the user has an unknown column, or a column of a wrong type."""

    code = "RQTTL_INVALID_SCHEMA"


class InvalidOffset(SourceError):
    """An offset in the checkpoint comes from another version of rqttl, or is damaged."""

    code = "RQTTL_INVALID_OFFSET"


class NoSuchQueue(SourceError):
    """A queue of the option `queues` or `queue` does not exist."""

    code = "RQTTL_QUEUE_NOT_FOUND"


class Unreachable(SourceError):
    """Redis does not answer at `url`, or not in time, and the retries are used up."""

    code = "RQTTL_UNREACHABLE"


class UntrustedCertificate(SourceError):
    """The certificate of the server does not verify, or the server refuses the certificate of this client."""

    code = "RQTTL_CERTIFICATE"


class RefusedForNow(SourceError):
    """Redis refuses commands for now, for example as a replica or during a script, and the retries are used up."""

    code = "RQTTL_REFUSED_FOR_NOW"


class NotAuthenticated(SourceError):
    """Redis refuses `username` and the password."""

    code = "RQTTL_AUTHENTICATION"


class NoPermission(SourceError):
    """The user has no right to run a command, or to use the keys of `namespace`."""

    code = "RQTTL_NO_PERMISSION"


class RefusedByRedis(SourceError):
    """Redis refused a command for a reason without an error class of its own."""

    code = "RQTTL_REDIS_ERROR"


class MalformedEntry(SourceError):
    """A log has an entry that rqttl did not write."""

    code = "RQTTL_MALFORMED_ENTRY"


class DataLoss(SourceError):
    """Retention, a limit, a purge or a deletion removed messages before this job read them."""

    code = "RQTTL_DATA_LOSS"


class SaveMode(SourceError):
    """The save mode is not `append`: a queue cannot be replaced."""

    code = "RQTTL_SAVE_MODE"


class QueueIsFull(SourceError):
    """A queue holds `maxQueueDepth` messages, and `fullTimeout` has passed."""

    code = "RQTTL_QUEUE_FULL"


class OutOfMemory(SourceError):
    """Redis has no memory left for messages, and `fullTimeout` has passed."""

    code = "RQTTL_OUT_OF_MEMORY"


class RowsRefused(SourceError):
    """Some rows were refused, and there is no `rejectedPath` for them. The job wrote all other rows."""

    code = "RQTTL_ROWS_REFUSED"


class ReportNotWritten(SourceError):
    """The rows are written, but the file of `reportPath` is not, for example because the disk is full."""

    code = "RQTTL_REPORT"
