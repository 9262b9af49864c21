"""One script call as a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rqttl.protocol import scripts
from rqttl.protocol.contract import REPLAY, Script, Word
from rqttl.protocol.keys import Keyspace
from rqttl.protocol.queue_config import keys_of

#: The largest number of messages, or of deliveries to settle, in one script call.
BATCH = 250

#: Bytes of headers and bodies after which a script call reads no further message. Batches of settles keep to it.
READ_BYTES = 2**22

#: Body bytes that one enqueue call carries at most (a single message may be larger).
BATCH_BYTES = 2**20


class Command(NamedTuple):
    """One script call as a value, before it is made.

    `repeatable`: two calls have the same effect as one, so the call may be repeated after a lost reply. `head` are the
    words before a batch, on a call that others may join; see `Joined`.
    """

    script: Script
    queue: str
    words: tuple[Word, ...]
    repeatable: bool = True
    head: tuple[Word, ...] = ()

    def as_replay(self) -> Command:
        """The same call with a mark for the script: the reply to an earlier attempt was lost."""
        return self.with_word(REPLAY, "1") if REPLAY in self.script.args else self

    @property
    def is_replay(self) -> bool:
        """True if the call has the mark of a replay."""
        return REPLAY in self.script.args and self.word(REPLAY) not in ("", b"")

    def word(self, argument: str) -> Word:
        """The word of one argument of its header."""
        return self.words[1 + int(self.words[0]) + self.script.args.index(argument)]

    def with_word(self, argument: str, word: Word) -> Command:
        """The same call with another value for one argument of its header."""
        index = 1 + int(self.words[0]) + self.script.args.index(argument)
        words = (*self.words[:index], word, *self.words[index + 1 :])
        return Command(self.script, self.queue, words, self.repeatable)


def unfenced(keyspace: Keyspace, queue: str, name: str, more: Iterable[Word] = (), /, **words: Word) -> Command:
    """A call that does not depend on the options in force. `words` are its arguments, named as in its header."""
    script = scripts.load(name)
    return Command(script, queue, (*keys_of(keyspace, queue, script, ()), *script.arguments(**words), *more))
