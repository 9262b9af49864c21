"""Address settings that match common names, and of which neither includes the other.

Artemis merges them setting by setting. Some settings become options of rqttl only together, and a policy has those of
its own element and of vaguer ones. So the import notes each pair with parts of one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rqttl.imports.artemis.address_setting import AddressSetting
from rqttl.imports.report import Notes

#: A file of hostile matches must not take long.
_MOST_PAIRS = 100_000
#: Settings that act together.
_GROUPS = (
    ("auto-create-expiry-resources", "expiry-address", "expiry-queue-prefix", "expiry-queue-suffix"),
    (
        "auto-create-dead-letter-resources",
        "dead-letter-address",
        "dead-letter-queue-prefix",
        "dead-letter-queue-suffix",
    ),
    ("expiry-delay", "min-expiry-delay", "max-expiry-delay", "no-expiry"),
    (
        "redelivery-delay",
        "redelivery-delay-multiplier",
        "redelivery-collision-avoidance-factor",
        "max-redelivery-delay",
    ),
    ("address-full-policy", "max-size-bytes", "max-size-messages", "default-ring-size"),
    ("auto-delete-queues", "auto-delete-queues-delay", "auto-delete-queues-message-count"),
)


def note_overlaps(settings: Iterable[AddressSetting], notes: Notes) -> None:
    """Note the pairs of settings that Artemis would combine and policies do not. One of each pair has a `*`."""
    ordered = sorted(settings, key=lambda setting: setting.pattern.rank)
    starred = [place for place, setting in enumerate(ordered) if "*" in setting.pattern.text.split(".")]
    if len(starred) * len(ordered) > _MOST_PAIRS:
        text = f"{len(starred):,} matches with a '*' are too many to compare: see that only one is for each name"
        notes.left_out("address-settings", "match", "", text)
        return
    for first, second in _pairs(ordered, starred):
        if second in first.vaguer or not _meet(first.pattern.text.split("."), second.pattern.text.split(".")):
            continue
        for group in _GROUPS:
            ours = [name for name in group if first.has(name)]
            theirs = [name for name in group if second.has(name) and name not in ours]
            if ours and theirs:
                text = (
                    f"address-setting {second.match!r} matches some of these names, too: for them Artemis combines "
                    f"{', '.join(ours)} of this one with {', '.join(theirs)} of that one, and rqttl does not; "
                    "write an address-setting for these names"
                )
                notes.translated(first.subject, "match", first.match, text)


def _pairs(
    ordered: Sequence[AddressSetting], starred: Sequence[int]
) -> Iterator[tuple[AddressSetting, AddressSetting]]:
    """The pairs with a `*` in at least one match, each once, in the order of their ranks."""
    places = {tuple(sorted((one, other))) for one in starred for other in range(len(ordered)) if one != other}
    return ((ordered[first], ordered[second]) for first, second in sorted(places))


def _meet(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """True if some name matches both patterns, given as their words."""
    open_ends = ours[-1] == "#", theirs[-1] == "#"
    fixed = ours[: len(ours) - open_ends[0]], theirs[: len(theirs) - open_ends[1]]
    longer = len(fixed[0]) - len(fixed[1])
    if (longer > 0 and not open_ends[1]) or (longer < 0 and not open_ends[0]):
        return False
    return all(a == b or "*" in (a, b) for a, b in zip(*fixed, strict=False))
