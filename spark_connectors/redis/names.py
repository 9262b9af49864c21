"""Names in Redis that the data source reads: fields of a record, of a tombstone, and of the name of the data."""

from __future__ import annotations

_VERSION, _CREATED_AT, _LAST, _TRIMMED, _ENQUEUED = "version", "created_at", "last_id", "trimmed_upto", "enqueued"
#: Fields of a record, as `QueueState.from_fields` takes them.
STATE_FIELDS = (_VERSION, _CREATED_AT, _LAST, _TRIMMED, _ENQUEUED)
#: Fields of a record, as `arrivals.Tally.parse` takes them.
TALLY_FIELDS = (_ENQUEUED, "letters", "letter_bytes")
#: Fields of a record, as `plan.queue_snapshots` takes them.
SNAPSHOT_FIELDS = (_VERSION, _CREATED_AT, _LAST, _TRIMMED, _ENQUEUED, "holds_dead_letters")
#: The field of a record with the sequence of its last message.
LAST_FIELD = _LAST
#: Fields of a tombstone, as `Tombstone.from_fields` takes them.
TOMBSTONE_FIELDS = (_CREATED_AT, _LAST, _TRIMMED, "deleted")
#: The field of the name of the data.
DATASET_FIELD = "name"
