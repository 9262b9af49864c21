"""The table that declares each option of the data source once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Use = Literal["batch", "stream", "write"]

_ALL: tuple[Use, ...] = ("batch", "stream", "write")
_READ: tuple[Use, ...] = ("batch", "stream")
_BATCH: tuple[Use, ...] = ("batch",)
_STREAM: tuple[Use, ...] = ("stream",)
_WRITE: tuple[Use, ...] = ("write",)


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` names the parser of its text (`values.PARSERS`), `default` is a text, `uses` are its jobs.

    `choices` are the values of kind `choice`. `minimum` and `maximum` bound a count, and a size in bytes; `minimum`
    bounds a duration in ms.
    """

    name: str
    kind: str
    default: str | None
    uses: tuple[Use, ...]
    meaning: str
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 2**53 - 1


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            "url",
            "url",
            "redis://localhost:6379/0",
            _ALL,
            "address of Redis: `redis://`, `rediss://` or `unix://`",
        ),
        Option("username", "text", None, _ALL, "ACL user in Redis"),
        Option(
            "passwordEnv",
            "text",
            None,
            _ALL,
            "environment variable that holds the password, on the driver and on every executor",
        ),
        Option(
            "passwordFile",
            "path",
            None,
            _ALL,
            "file that holds the password, on the driver and on every executor",
        ),
        Option(
            "password",
            "secret",
            None,
            _ALL,
            "password; it travels with every task, and over Spark Connect the event log has it in plain text: prefer "
            "one of the two options above",
        ),
        Option(
            "tlsCaFile",
            "path",
            None,
            _ALL,
            "file of trusted certificates for `rediss://`; default: the certificates of the system",
        ),
        Option("tlsCertFile", "path", None, _ALL, "file with the certificate of the client"),
        Option("tlsKeyFile", "path", None, _ALL, "file with the private key of the client"),
        Option("tlsVerify", "flag", "true", _ALL, "check the certificate and the name of the server"),
        Option("namespace", "namespace", "rqttl", _ALL, "prefix of all keys in Redis"),
        Option("socketTimeout", "duration", "30s", _ALL, "longest wait for one reply", minimum=1),
        Option(
            "connectRetries",
            "count",
            "5",
            _ALL,
            "attempts to restore a lost connection before the task fails; the pauses before them double from 200 ms to "
            "10 s",
            maximum=1000,
        ),
        Option("queues", "queues", None, _READ, "queues to read, separated by commas; same as the path of `load(...)`"),
        Option(
            "queuePattern",
            "pattern",
            None,
            _READ,
            "pattern of queues to read, instead of `queues`: words with dots or slashes between them, `*` for one "
            "word, `#` for any words",
        ),
        Option(
            "startingOffsets",
            "offsets",
            "earliest",
            _READ,
            'start of the read: `earliest`, JSON `{"queue": "sequence"}` to begin after these sequences, or, for a '
            "stream, `latest`",
        ),
        Option(
            "endingOffsets",
            "offsets",
            "latest",
            _BATCH,
            'end of the read: `latest`, or JSON `{"queue": "sequence"}` to end with these sequences',
        ),
        Option(
            "startingTimestamp",
            "instant",
            None,
            _READ,
            "read messages that died at this time or later; takes precedence over `startingOffsets`",
        ),
        Option(
            "endingTimestamp",
            "instant",
            None,
            _BATCH,
            "read messages that died before this time; takes precedence over `endingOffsets`",
        ),
        Option(
            "numPartitions",
            "count",
            None,
            _READ,
            "largest number of tasks, never more than rows; default: one for each 250,000 rows, at most 64",
            minimum=1,
            maximum=100_000,
        ),
        Option(
            "fetchEntries",
            "count",
            "1000",
            _READ,
            "largest number of entries in one request. A task waits one round trip for each request: over a network "
            "with milliseconds of delay, 5,000 and a `fetchBytes` of `2m` read about three times as fast",
            minimum=1,
            maximum=100_000,
        ),
        Option(
            "fetchBytes",
            "size",
            "512k",
            _READ,
            "approximate size of a reply; a request asks for fewer entries if they are large",
            minimum=1024,
        ),
        Option(
            "failOnDataLoss",
            "flag",
            "true",
            _READ,
            "fail if retention, a limit, a purge or the deletion of a queue removed messages before this job read them",
        ),
        Option(
            "decode",
            "choice",
            "none",
            _READ,
            "decoding of bodies: `json` adds the column `body_json`, with bodies of msgpack and JSON as JSON text",
            ("none", "json"),
        ),
        Option(
            "includeDeaths",
            "flag",
            "false",
            _READ,
            "add the column `deaths` to a read without a schema; a schema that names the column needs no option",
        ),
        Option(
            "maxEntriesPerTrigger", "count", None, _STREAM, "largest number of messages in a micro-batch", minimum=1
        ),
        Option(
            "maxBytesPerTrigger",
            "size",
            None,
            _STREAM,
            "largest size of a micro-batch, in bytes of headers and bodies; a larger message makes a batch of its own",
            minimum=1,
        ),
        Option(
            "minEntriesPerTrigger",
            "count",
            None,
            _STREAM,
            "number of unread messages for which a micro-batch waits; with `Trigger.AvailableNow` it does not wait",
            minimum=1,
        ),
        Option(
            "maxTriggerDelay",
            "duration",
            "15m",
            _STREAM,
            "longest such wait, from the last micro-batch or from the start of the query",
        ),
        Option(
            "afterCommit",
            "choice",
            "keep",
            _STREAM,
            "messages that a committed batch has read: `keep` them in their queue, or `purge` them, which needs the "
            "right to write",
            ("keep", "purge"),
        ),
        Option(
            "operation",
            "choice",
            "enqueue",
            _WRITE,
            "action on the rows: `enqueue` them, `redrive` dead letters back to their source, or `purge` dead letters",
            ("enqueue", "redrive", "purge"),
        ),
        Option(
            "queue",
            "queue",
            None,
            _WRITE,
            "queue of all rows; same as the path of `save(...)`; default: the column `queue`",
        ),
        Option(
            "idempotency",
            "choice",
            "required",
            _WRITE,
            "`required`: each row of `enqueue` has a `message_id`, and repeated writes store it once; `off`: repeated "
            "writes, for example after a failed task, store duplicates",
            ("required", "off"),
        ),
        Option(
            "idempotencyTtl",
            "duration",
            "1d",
            _WRITE,
            "time for which Redis remembers a message id, unless the `duplicate_window` of the queue is longer",
            minimum=1,
        ),
        Option(
            "maxQueueDepth",
            "count",
            None,
            _WRITE,
            "largest number of ready messages in a queue that this job fills; parallel tasks may exceed it by a few "
            "calls",
            minimum=1,
        ),
        Option(
            "fullTimeout",
            "duration",
            "10m",
            _WRITE,
            "longest wait for room, without a written row, in a queue at `maxQueueDepth` or in a Redis without free "
            "memory; then the task fails. `0s` does not wait",
        ),
        Option(
            "rejectedPath",
            "path",
            None,
            _WRITE,
            "folder for refused rows, as JSON lines: one file for each task with refused rows. Without it the job "
            "fails after all other rows are written. Every executor needs write access to the folder",
        ),
        Option(
            "reportPath",
            "path",
            None,
            _WRITE,
            "JSON report of the write, on the driver: the path of the file for a batch, and of a folder for a stream, "
            "which gets a file for each micro-batch",
        ),
    )
}
