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
        Option("url", "url", "redis://localhost:6379/0", _ALL, "address; see [Servers](#servers)"),
        Option("username", "text", None, _ALL, "ACL user in Redis"),
        Option("passwordEnv", "text", None, _ALL, "environment variable with the password, on driver and executors"),
        Option("passwordFile", "path", None, _ALL, "file with the password, on driver and executors"),
        Option("password", "secret", None, _ALL, "password; it travels with every task: prefer the two above"),
        Option("tlsCaFile", "path", None, _ALL, "trusted certificates for `rediss://`; default: those of the system"),
        Option("tlsCertFile", "path", None, _ALL, "certificate of the client"),
        Option("tlsKeyFile", "path", None, _ALL, "private key of the client"),
        Option("tlsVerify", "flag", "true", _ALL, "check the certificate and the name of the server"),
        Option("namespace", "namespace", "rqttl", _ALL, "prefix of all keys in Redis"),
        Option("socketTimeout", "duration", "30s", _ALL, "longest wait for one reply", minimum=1),
        Option("connectRetries", "count", "5", _ALL, "attempts to restore a lost connection", maximum=1000),
        Option("queues", "queues", None, _READ, "queues to read, with commas between them; also `load(...)`"),
        Option("queuePattern", "pattern", None, _READ, "pattern of queues to read, instead of `queues`"),
        Option(
            "startingOffsets", "offsets", "earliest", _READ, 'begin: `earliest`, `{"queue": "sequence"}`, or `latest`'
        ),
        Option("endingOffsets", "offsets", "latest", _BATCH, 'end: `latest`, or `{"queue": "sequence"}`'),
        Option("startingTimestamp", "instant", None, _READ, "read messages that died at this time or later"),
        Option("endingTimestamp", "instant", None, _BATCH, "read messages that died before this time"),
        Option(
            "numPartitions",
            "count",
            None,
            _READ,
            "most tasks; default: one for 250,000 rows",
            minimum=1,
            maximum=100_000,
        ),
        Option("fetchEntries", "count", "1000", _READ, "most entries in one request", minimum=1, maximum=100_000),
        Option("fetchBytes", "size", "512k", _READ, "approximate size of a reply", minimum=1024),
        Option("failOnDataLoss", "flag", "true", _READ, "fail if messages were removed before this job read them"),
        Option("decode", "choice", "none", _READ, "`json` adds the column `body_json`", ("none", "json")),
        Option("includeDeaths", "flag", "false", _READ, "add the column `deaths` to a read without a schema"),
        Option("maxEntriesPerTrigger", "count", None, _STREAM, "most messages in a micro-batch", minimum=1),
        Option("maxBytesPerTrigger", "size", None, _STREAM, "most bytes of headers and bodies in one", minimum=1),
        Option("minEntriesPerTrigger", "count", None, _STREAM, "messages for which a micro-batch waits", minimum=1),
        Option("maxTriggerDelay", "duration", "15m", _STREAM, "longest such wait"),
        Option("afterCommit", "choice", "keep", _STREAM, "`purge` messages that were read", ("keep", "purge")),
        Option("operation", "choice", "enqueue", _WRITE, "what happens to the rows", ("enqueue", "redrive", "purge")),
        Option("queue", "queue", None, _WRITE, "queue of all rows; also `save(...)`; default: the column `queue`"),
        Option(
            "idempotency",
            "choice",
            "required",
            _WRITE,
            "`off`: rows need no id, and repeats store duplicates",
            ("required", "off"),
        ),
        Option("idempotencyTtl", "duration", "1d", _WRITE, "time for which Redis remembers a message id", minimum=1),
        Option("maxQueueDepth", "count", None, _WRITE, "most ready messages in a queue that this job fills", minimum=1),
        Option("fullTimeout", "duration", "10m", _WRITE, "longest wait for `maxQueueDepth` or memory; `0s`: none"),
        Option(
            "rejectedPath", "path", None, _WRITE, "folder for refused rows, as JSON lines; without it the job fails"
        ),
        Option("reportPath", "path", None, _WRITE, "JSON report on the driver: a file, for a stream a folder"),
    )
}
