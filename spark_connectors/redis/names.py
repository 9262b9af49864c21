"""Names in Redis that the data source reads by itself: fields of its record and its tombstone."""

from __future__ import annotations

_VERSION, _CREATED_AT, _LAST, _TRIMMED, _ENQUEUED = "version", "created_at", "last_id", "trimmed_upto", "enqueued"
#: Fields of a record, as `QueueState.from_fields` takes them.
STATE_FIELDS = (_VERSION, _CREATED_AT, _LAST, _TRIMMED, _ENQUEUED)
#: Fields of a record, as `plan.queue_snapshots` takes them.
SNAPSHOT_FIELDS = (_VERSION, _CREATED_AT, _LAST, _TRIMMED, "holds_dead_letters")
#: Fields of a tombstone, as `Tombstone.from_fields` takes them.
TOMBSTONE_FIELDS = (_CREATED_AT, _LAST, _TRIMMED)
