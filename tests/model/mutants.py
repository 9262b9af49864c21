"""Shows that the model test can fail: seeds one bug after another into a copy of `lua/` and counts which are found.

    python -m tests.model.mutants [name ...]

RQTTL_MODEL_RUNS says how many runs each mutant gets. Not part of CI. Ends with 1 if a mutant survives, or no longer
applies because the script has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Mutant(NamedTuple):
    """In `file`, `old` (it must be there exactly once) becomes `new`."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant("a message may be delivered at its deadline", "lib/lifetime.lua", "deadline <= now", "deadline < now"),
    Mutant("dead on arrival, not told", "lib/mixed.lua", "return '~' .. items", "return items"),
    Mutant("a lease holds at its end", "lib/lease.lua", "(now + 1) * 1000", "now * 1000"),
    Mutant(
        "any token settles",
        "lib/lease.lua",
        "if open and (found == token or tonumber(found) == tonumber(token) and found) then",
        "if open and found then",
    ),
    Mutant("no fence", "lib/queue.lua", "m[1] ~= version", "false"),
    Mutant(
        "given back: place forgotten",
        "lib/returns.lua",
        "redis.call('ZADD', q.returned, tonumber(string.sub(id, 1, 13)), id)",
        "local _ = id",
    ),
    Mutant("given back: bytes forgotten", "lib/returns.lua", "q.bytes = q.bytes + #entry[2][2]", "local _ = entry"),
    Mutant(
        "given back: own deadline forgotten",
        "lib/returns.lua",
        "redis.call('ZADD', q.expiry, own, id)",
        "local _ = own",
    ),
    Mutant(
        "given back: nobody knows when it is due",
        "lib/returns.lua",
        "  if deadline then\n    queue.due_by(q, deadline)\n  end\n",
        "",
    ),
    Mutant(
        "a delay may outlast the deadline", "lib/returns.lua", "deadline and math.min(ends, deadline) or ends", "ends"
    ),
    Mutant("one delivery more than the limit", "lib/fates.lua", "n >= q.max_deliveries", "n > q.max_deliveries"),
    Mutant(
        "expired messages come back",
        "lib/fates.lua",
        "elseif lifetime.is_over(q, now, entry) then",
        "elseif false then",
    ),
    Mutant("what is not counted counts", "lib/returns.lua", "if how.counted == 1 or", "if true or"),
    Mutant(
        "failed deliveries are forgotten",
        "lib/returns.lua",
        "(fate.failed[id] or 0) + how.counted",
        "how.counted",
    ),
    Mutant(
        "the first description stays",
        "lib/returns.lua",
        "how.description ~= '' and how.description or fate.said[id]",
        "fate.said[id] or how.description",
    ),
    Mutant(
        "a failure without a description forgets the one before",
        "lib/returns.lua",
        "how.description ~= '' and how.description or fate.said[id]",
        "how.description",
    ),
    Mutant("descriptions are not kept", "lib/failures.lua", "description and description ~= '' and", "false and"),
    Mutant(
        "a description is cut at a space",
        "lib/failures.lua",
        "string.sub(value, gap + 1)",
        "string.match(value, '^%d+ (%S*)')",
    ),
    Mutant(
        "a death by count does not say the error before",
        "lib/dead_letter.lua",
        "if reason ~= 'delivery_limit' or description ~= '' then said = {} end",
        "said = {}",
    ),
    Mutant(
        "a death by count says the error before its own",
        "lib/dead_letter.lua",
        "if reason ~= 'delivery_limit' or description ~= '' then",
        "if reason ~= 'delivery_limit' then",
    ),
    Mutant(
        "a death by count does not say its own error",
        "lib/returns.lua",
        "reason == 'delivery_limit' and how.description",
        "nil",
    ),
    Mutant(
        "every death says the last error",
        "lib/dead_letter.lua",
        "if reason ~= 'delivery_limit' or description ~= '' then",
        "if description ~= '' then",
    ),
    Mutant(
        "the pause goes before a delay",
        "lib/pause.lua",
        "not how.delay and how.counted == 1 and pause.rule(q)",
        "how.counted == 1 and pause.rule(q)",
    ),
    Mutant(
        "what is not counted pauses", "lib/pause.lua", "not how.delay and how.counted == 1 and", "not how.delay and"
    ),
    Mutant(
        "the end of a lease makes no pause",
        "lib/pause.lua",
        "not how.delay and how.counted == 1 and",
        "not how.delay and not how.ran_out and how.counted == 1 and",
    ),
    Mutant(
        "a pause begins when somebody notices",
        "lib/pause.lua",
        "local at = tokens and math.floor(tokens[i] / 1000) or now",
        "local at = now",
    ),
    Mutant(
        "a pause does not grow",
        "lib/pause.lua",
        "pause.after(rule, id, (failed[id] or 0) + 1, at)",
        "pause.after(rule, id, 1, at)",
    ),
    Mutant("a pause grows too early", "lib/pause.lua", "^ (n - 1))", "^ n)"),
    Mutant(
        "a pause has no bound",
        "lib/pause.lua",
        "math.min(rule.most, rule.delay * rule.multiplier ^ (n - 1))",
        "rule.delay * rule.multiplier ^ (n - 1)",
    ),
    Mutant("chance lengthens a pause", "lib/pause.lua", "(1 - rule.jitter *", "(1 + rule.jitter *"),
    Mutant("chance does nothing", "lib/pause.lua", "if rule.jitter > 0 then", "if false then"),
    Mutant("chance is the same for a batch", "lib/pause.lua", "string.sub(id, 15), n, at}", "n, at}"),
    Mutant("a pause that is over is one", "lib/returns.lua", "if ends and ends > now then", "if ends then"),
    Mutant(
        "an unset pause stays",
        "commands/update.lua",
        ", 'redelivery_delay', 'redelivery_multiplier'",
        ", 'redelivery_multiplier'",
    ),
    Mutant(
        "taken: still among the returned",
        "lib/claim.lua",
        "redis.call('ZREM', q.returned, unpack(state.ids))",
        "local _ = state",
    ),
    Mutant(
        "taken: still among those that expire",
        "lib/claim.lua",
        "redis.call('ZREM', q.expiry, unpack(#own > 0 and own or {''}))",
        "local _ = own",
    ),
    Mutant("taken: bytes stay", "lib/claim.lua", "q.bytes = q.bytes - state.size", "local _ = state.size"),
    Mutant(
        "redelivered is not counted",
        "commands/receive.lua",
        "if #failed > 0 then queue.count(q, 'redelivered', #failed / 2) end",
        "",
    ),
    Mutant("finished: not counted", "commands/receive.lua", "queue.count(q, 'acked', #held)", "local _ = held"),
    Mutant(
        "finished: failures stay", "lib/lease.lua", "redis.call('HDEL', q.redelivered, unpack(ids))", "local _ = ids"
    ),
    Mutant("one message over the limit", "lib/length.lua", "count - q.max_length)", "count - q.max_length - 1)"),
    Mutant("one byte over the limit", "lib/length.lua", "size - q.max_length_bytes)", "size - q.max_length_bytes - 1)"),
    Mutant("a deleted queue forgets what it lost", "lib/gone.lua", "'trimmed', q.trimmed)", "'trimmed', '0-0')"),
    Mutant("what lost nothing leaves a trace", "lib/gone.lua", "held == '0-0' and q.trimmed == '0-0'", "false"),
    Mutant("returned messages are not trimmed", "lib/returns.lua", "  length.bury(q, now, room.all)\n", ""),
    Mutant(
        "live messages are dropped before expired ones",
        "commands/nack.lua",
        "length.drops(q) and q.due and q.due <= now and",
        "false and",
    ),
    Mutant("what comes back drops the youngest", "lib/squeeze.lua", "mine[1] < head[1]", "mine[1] > head[1]"),
    Mutant(
        "an arriving message does not see expired ones",
        "lib/room.lua",
        "if q.due and q.due <= now then",
        "if false then",
    ),
    Mutant(
        "expired at random",
        "lib/overdue.lua",
        "return at[a] < at[b] or at[a] == at[b] and a < b",
        "return a > b",
    ),
    Mutant(
        "retention ends a millisecond late",
        "lib/candidates.lua",
        "upto - q.message_ttl)",
        "upto - q.message_ttl - 1)",
    ),
    Mutant("circles go round", "lib/history.lua", "if history.in_circle(target, death, older) then return nil end", ""),
    Mutant("a rejection does not end a circle", "lib/history.lua", "record.reason == 'rejected' or ", ""),
    Mutant("a redrive does not end a circle", "lib/history.lua", " or record.reason == 'redriven'", ""),
    Mutant(
        "deaths are not added up",
        "lib/history.lua",
        "count, first = record.count + 1, record.first",
        "count, first = 1, record.first",
    ),
    Mutant("letters take no room", "lib/target.lua", "t.bytes = t.bytes + size", "local _ = size"),
    Mutant("letters beyond a limit stay", "lib/target.lua", "queue.due_by(t, now)\n", "\n"),
    Mutant(
        "the death does not count its delivery",
        "lib/dead_letter.lua",
        "failed + death.more or fewest",
        "failed or '0'",
    ),
    Mutant("ids follow the clock back", "lib/append.lua", "q.prefix > q.last", "q.prefix ~= q.last"),
    Mutant("the floor is ignored", "lib/lifetime.lua", "own < q.min_ttl", "own < 0"),
    Mutant("a shortened lease is noticed late", "commands/renew.lua", "  queue.due_by(q, ends)\n", ""),
    Mutant("a changed option waits", "lib/announce.lua", "redis.call('HSET', meta, 'due', 0)", "local _ = meta"),
    Mutant(
        "nobody is woken by a message that comes back",
        "lib/wake.lua",
        "if q.attended == '1' and queue.ready(q) > 0 then",
        "if false then",
    ),
    Mutant(
        "a ticket outlives its lease",
        "lib/ticket.lua",
        "if id and lease.held(q, now, {token, 1, id}, '')[1] then",
        "if id and log.find(q, id) then",
    ),
    Mutant(
        "one message is handed to two consumers",
        "lib/wake.lua",
        "\n    - redis.call('ZCOUNT', q.waiting, '-inf', string.format('(%d', -now))",
        "",
    ),
    Mutant(
        "an arriving message overtakes ready ones",
        "lib/handover.lua",
        "local left, last = free - ready, 0",
        "local left, last, ready = free, 0, 0",
    ),
    Mutant("handed over: still ready", "lib/handover.lua", "  claim.settle(q, now, state)\n", ""),
    Mutant("expired, and said to be settled", "lib/lease.lua", "elseif not open then", "elseif false then"),
    Mutant("a successor begins anew", "lib/options.lua", "and place > last and", "and false and"),
    Mutant("purged: failures stay", "lib/purge.lua", "redis.call('HDEL', q.redelivered, unpack(ids))", "local _ = ids"),
    Mutant(
        "what is leased can be purged by its place",
        "lib/purge.lua",
        "if not leased[i] and not delayed[i] then",
        "if not delayed[i] then",
    ),
    Mutant(
        "what is delayed can be purged by its place",
        "lib/purge.lua",
        "if not leased[i] and not delayed[i] then",
        "if not leased[i] then",
    ),
    Mutant(
        "chosen messages take those before them along",
        "commands/purge.lua",
        "purge.remove(q, chosen, false)",
        "purge.remove(q, chosen, true)",
    ),
    Mutant("purged: not missed", "lib/purge.lua", "  ready.miss(q, entries)\n", ""),
    Mutant("expired or over a limit: not missed", "lib/ready.lua", "  ready.miss(q, entries)\n", ""),
    Mutant("expired when given back: not missed", "lib/returns.lua", "if reason == 'expired' then", "if false then"),
    Mutant("whatever dies when given back is missed", "lib/returns.lua", "if reason == 'expired' then", "if true then"),
    Mutant(
        "redriven: still where it was",
        "lib/redrive.lua",
        "  purge.take(from, #gone == #letters and letters or gone, false)\n",
        "",
    ),
    Mutant("redriven: missed", "lib/redrive.lua", "purge.take(from,", "purge.remove(from,"),
    Mutant("redriven: not counted", "lib/redrive.lua", "  queue.count(from, 'redriven', #gone)\n", ""),
    Mutant("redriven: the record left as it was", "lib/redrive.lua", "  record.save(from)\n", ""),
    Mutant("refused and redriven", "lib/redrive.lua", "if items.fate[2 * i] ~= 'refused' then", "if true then"),
    Mutant("dead and redriven", "lib/redrive.lua", "if not lifetime.is_over(from, now, entry) then", "if true then"),
    Mutant("redriven: no deadline", "lib/redrive.lua", "    items.own[2 * i] = own\n", ""),
    Mutant("redriven: nobody dies of a TTL of 0", "lib/redrive.lua", "    if dead then\n", "    if false then\n"),
    Mutant("refused: dead-lettered once more", "commands/redrive.lua", "q.dead_letters_new = false\n", ""),
    Mutant(
        "redriven: headers or deaths lost",
        "lib/history.lua",
        ", #own_id, #deaths) .. own_id .. deaths .. extras\nend\n\n--- The history",
        ", #own_id, 0) .. own_id .. extras\nend\n\n--- The history",
    ),
    Mutant("what is gone is never taken for redriven", "lib/redrive.lua", "again ~= '' and", "false and"),
    Mutant("what is out is taken for redriven", "lib/redrive.lua", "(not missing or missing[id]) and", ""),
)


def run(mutant: Mutant) -> str:
    """`found`, `survived`, or `does not apply`."""
    with tempfile.TemporaryDirectory(prefix="rqttl-mutant-") as folder:
        root = Path(folder)
        for part in ("lua", "rqttl", "tests"):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", root)
        path = root / "lua" / mutant.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return "does not apply"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/model/test_model.py"]
        environment = {**os.environ, "RQTTL_MODEL_QUICK": "1"}
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        return {0: "survived", 1: "found"}.get(
            done.returncode, f"did not run:\n{done.stdout[-2000:]}{done.stderr[-1000:]}"
        )


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, chosen))
    for mutant, outcome in zip(chosen, outcomes, strict=True):
        sys.stdout.write(f"{outcome:<15} {mutant.name} ({mutant.file})\n")
    found = outcomes.count("found")
    sys.stdout.write(f"{found} of {len(chosen)} found\n")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
