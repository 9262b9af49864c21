"""Names with a hash tag: scripts know the name of the queue for any rule of the slot."""

from __future__ import annotations

import pytest

from tests.contract.clocked import Clocked
from tests.contract.looks import one, take


@pytest.mark.parametrize("name", ["orders", "orders/eu", "{billing}.orders", "{billing}.orders/eu", "{eu}:a/b"])
def test_letters_name_their_queue_with_any_hash_tag(clocked: Clocked, name: str) -> None:
    queue = clocked.declare_queue(name, dead_letter="{queue}/dead", expires="1h", on_expire="dead-letter")
    queue.enqueue(b"x")
    one(queue).reject()
    queue.enqueue(b"y")

    clocked.advance("1h")
    assert queue.sweep()[-1].retired == 0

    assert clocked.queues() == [f"{name}/dead"]
    letters = take(clocked.queue(f"{name}/dead"))
    assert [(letter.body, letter.deaths[0].queue) for letter in letters] == [(b"x", name), (b"y", name)]
