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
    """A seeded bug: in `script`, `old` (it must be there exactly once) becomes `new`.

    `script` is the name of a fragment, or `commands/<name>`.
    """

    name: str
    script: str
    old: str
    new: str

    def path(self, root: Path) -> Path:
        """The file of the script in a copy of the project."""
        if "/" in self.script:
            return root / "lua" / f"{self.script}.lua"
        [path] = (root / "lua" / "lib").glob(f"*/{self.script}.lua")
        return path

    def applies(self, root: Path) -> bool:
        """Whether the script still has the text that the bug replaces."""
        return self.path(root).read_text(encoding="utf-8").count(self.old) == 1


MUTANTS = (
    Mutant("a message may be delivered at its deadline", "message_ttl", "deadline <= now", "deadline < now"),
    Mutant("dead on arrival, not told", "store", "return '~' .. items", "return items"),
    Mutant("a lease holds at its end", "lease", "(now + 1) * 1000", "now * 1000"),
    Mutant(
        "any token settles",
        "lease",
        "if open and (ends_at == token or tonumber(ends_at) == tonumber(token) and ends_at) then",
        "if open and ends_at then",
    ),
    Mutant("no fence", "record", "found_version ~= version", "false"),
    Mutant(
        "given back: place forgotten", "requeue", "redis.call('ZADD', q.requeued, log.ms(seq), seq)", "local _ = seq"
    ),
    Mutant("given back: bytes forgotten", "requeue", "q.ready_bytes = q.ready_bytes + #entry[2][2]", "local _ = entry"),
    Mutant(
        "given back: own deadline forgotten",
        "requeue",
        "redis.call('ZADD', q.expiry, own_deadline, seq)",
        "local _ = own_deadline",
    ),
    Mutant(
        "given back: nobody knows when it is due",
        "requeue",
        "  if deadline then\n    record.schedule_sweep(q, deadline)\n  end\n",
        "",
    ),
    Mutant("a delay may outlast the deadline", "delays", "deadline and math.min(ends, deadline) or ends", "ends"),
    Mutant("one delivery more than the limit", "requeue", "+ 1 >= q.max_deliveries", "+ 1 > q.max_deliveries"),
    Mutant(
        "expired messages come back", "requeue", "elseif message_ttl.is_over(q, now, entry) then", "elseif false then"
    ),
    Mutant("what is not counted counts", "requeue", "if mode.counted == 1 or", "if true or"),
    Mutant("failed deliveries are forgotten", "requeue", "(outcome.failed[seq] or 0) + mode.counted", "mode.counted"),
    Mutant(
        "the first description stays",
        "requeue",
        "described and mode.description or outcome.descriptions[seq]",
        "outcome.descriptions[seq] or mode.description",
    ),
    Mutant(
        "a failure without a description forgets the one before",
        "requeue",
        "described and mode.description or outcome.descriptions[seq]",
        "mode.description",
    ),
    Mutant("descriptions are not kept", "failures", "description and description ~= '' and", "false and"),
    Mutant(
        "a description is cut at a space",
        "failures",
        "= string.sub(value, at) end",
        "= string.match(value, '^%S*', at) end",
    ),
    Mutant(
        "a death by count does not say the error before",
        "dead_letter",
        "if reason ~= 'delivery_limit' or description ~= '' then descriptions = {} end",
        "descriptions = {}",
    ),
    Mutant(
        "a death by count says the error before its own",
        "dead_letter",
        "if reason ~= 'delivery_limit' or description ~= '' then",
        "if reason ~= 'delivery_limit' then",
    ),
    Mutant(
        "a death by count does not say its own error",
        "requeue",
        "reason == 'delivery_limit' and mode.description",
        "nil",
    ),
    Mutant(
        "every death says the last error",
        "dead_letter",
        "if reason ~= 'delivery_limit' or description ~= '' then",
        "if description ~= '' then",
    ),
    Mutant(
        "the pause goes before a delay",
        "pause",
        "not mode.delay and mode.counted == 1 and pause.rule(q)",
        "mode.counted == 1 and pause.rule(q)",
    ),
    Mutant("what is not counted pauses", "pause", "not mode.delay and mode.counted == 1 and", "not mode.delay and"),
    Mutant(
        "the end of a lease makes no pause",
        "pause",
        "not mode.delay and mode.counted == 1 and",
        "not mode.delay and not mode.ran_out and mode.counted == 1 and",
    ),
    Mutant(
        "a pause begins when somebody notices",
        "pause",
        "local at = tokens and math.floor(tokens[i] / 1000) or now",
        "local at = now",
    ),
    Mutant("a pause does not grow", "pause", "after(rule, seq, (failed[seq] or 0) + 1, at)", "after(rule, seq, 1, at)"),
    Mutant("a pause grows too early", "pause", "^ (n - 1))", "^ n)"),
    Mutant(
        "a pause has no bound",
        "pause",
        "math.min(rule.most, rule.delay * rule.multiplier ^ (n - 1))",
        "rule.delay * rule.multiplier ^ (n - 1)",
    ),
    Mutant("chance lengthens a pause", "pause", "(1 - rule.jitter *", "(1 + rule.jitter *"),
    Mutant("chance does nothing", "pause", "if rule.jitter > 0 then", "if false then"),
    Mutant("chance is the same for a batch", "pause", "string.sub(seq, 15), n, at}", "n, at}"),
    Mutant("a pause that is over is one", "requeue", "if ends and ends > now then", "if ends then"),
    Mutant(
        "an unset pause stays",
        "commands/update",
        ", 'redelivery_delay', 'redelivery_multiplier'",
        ", 'redelivery_multiplier'",
    ),
    Mutant(
        "taken: still among the returned",
        "take",
        "redis.call('ZREM', q.requeued, unpack(state.seqs))",
        "local _ = state",
    ),
    Mutant(
        "taken: still among those that expire",
        "take",
        "redis.call('ZREM', q.expiry, unpack(#with_header > 0 and with_header or {''}))",
        "local _ = with_header",
    ),
    Mutant("taken: bytes stay", "take", "q.ready_bytes = q.ready_bytes - state.size", "local _ = state.size"),
    Mutant(
        "redelivered is not counted",
        "commands/receive",
        "if #failed > 0 then record.count(q, 'redelivered', #failed / 2) end",
        "",
    ),
    Mutant("finished: not counted", "commands/receive", "record.count(q, 'acked', #held)", "local _ = held"),
    Mutant("finished: failures stay", "lease", "redis.call('HDEL', q.failures, unpack(seqs))", "local _ = seqs"),
    Mutant("one message over the limit", "limits", "count - q.max_length)", "count - q.max_length - 1)"),
    Mutant("one byte over the limit", "limits", "size - q.max_length_bytes)", "size - q.max_length_bytes - 1)"),
    Mutant(
        "a deleted queue forgets what it lost", "tombstone", "'trimmed_upto', q.trimmed_upto)", "'trimmed_upto', '0-0')"
    ),
    Mutant("what lost nothing leaves a trace", "tombstone", "highest == '0-0' and q.trimmed_upto == '0-0'", "false"),
    Mutant(
        "returned messages are not trimmed",
        "requeue",
        "  if #room.all > 0 then lazy(limits).bury(q, now, room.all) end\n",
        "",
    ),
    Mutant(
        "live messages are dropped before expired ones",
        "commands/nack",
        "limits.drops_oldest(q) and q.due_at and q.due_at <= now and",
        "false and",
    ),
    Mutant("what comes back drops the youngest", "limits", "returning[1] < head[1]", "returning[1] > head[1]"),
    Mutant(
        "an arriving message does not see expired ones",
        "admission",
        "if q.due_at and q.due_at <= now then",
        "if false then",
    ),
    Mutant("expired at random", "expiry", "return at[a] < at[b] or at[a] == at[b] and a < b", "return a > b"),
    Mutant("retention ends a millisecond late", "candidates", "upto - q.message_ttl)", "upto - q.message_ttl - 1)"),
    Mutant("circles go round", "history", "if history.in_circle(target, death, older) then return nil end", ""),
    Mutant("a rejection does not end a circle", "history", "return reason == 'rejected' or ", "return "),
    Mutant("a redrive does not end a circle", "history", " or reason == 'redriven'", ""),
    Mutant(
        "deaths are not added up",
        "history",
        "count, first = earlier.count + 1, earlier.first",
        "count, first = 1, earlier.first",
    ),
    Mutant("letters take no room", "dead_letter", "t.ready_bytes = t.ready_bytes + size", "local _ = size"),
    Mutant("letters beyond a limit stay", "dead_letter", "record.schedule_sweep(t, now)\n", "\n"),
    Mutant("the death does not count its delivery", "dead_letter", "failed + death.more or fewest", "failed or '0'"),
    Mutant("ids follow the clock back", "append", "q.prefix > q.last_id", "q.prefix ~= q.last_id"),
    Mutant("the floor is ignored", "message_ttl", "ttl < q.min_ttl", "ttl < 0"),
    Mutant("a shortened lease is noticed late", "commands/renew", "  record.schedule_sweep(q, ends)\n", ""),
    Mutant("a changed option waits", "reaper_hint", "redis.call('HSET', meta, 'due_at', 0)", "local _ = meta"),
    Mutant(
        "nobody is woken by a message that comes back",
        "wakeup",
        "if q.has_waiters == '1' and ready.count(q) > 0 then",
        "if false then",
    ),
    Mutant(
        "a ticket outlives its lease",
        "handoff",
        "if seq and lease.held(q, now, {token, 1, seq}, '')[1] then",
        "if seq and log.find(q, seq) then",
    ),
    Mutant(
        "one message is handed to two consumers",
        "wakeup",
        "\n    - redis.call('ZCOUNT', q.waiters, '-inf', string.format('(%d', -now))",
        "",
    ),
    Mutant(
        "an arriving message overtakes ready ones",
        "handoff",
        "local left, last = free - ready, 0",
        "local left, last, ready = free, 0, 0",
    ),
    Mutant("handed over: still ready", "handoff", "  take.apply(q, now, state)\n", ""),
    Mutant("expired, and said to be settled", "lease", "elseif not open or", "elseif"),
    Mutant("a successor begins anew", "options", "if seq and seq > last and", "if seq and false and"),
    Mutant("purged: failures stay", "purge", "redis.call('HDEL', q.failures, unpack(seqs))", "local _ = seqs"),
    Mutant(
        "what is leased can be purged by its place",
        "purge",
        "for _, part in ipairs(states.away()) do",
        "for _, part in ipairs({'delayed'}) do",
    ),
    Mutant(
        "what is delayed can be purged by its place",
        "purge",
        "for _, part in ipairs(states.away()) do",
        "for _, part in ipairs({'leases'}) do",
    ),
    Mutant(
        "chosen messages take those before them along",
        "commands/purge",
        "purge.remove(q, chosen, false)",
        "purge.remove(q, chosen, true)",
    ),
    Mutant("purged: not missed", "purge", "  ready.record_loss(q, entries)\n", ""),
    Mutant("expired or over a limit: not missed", "ready", "  ready.record_loss(q, entries)\n", ""),
    Mutant("expired when given back: not missed", "requeue", "if reason == 'expired' then", "if false then"),
    Mutant("whatever dies when given back is missed", "requeue", "if reason == 'expired' then", "if true then"),
    Mutant(
        "redriven: still where it was",
        "redrive",
        "  purge.take(from, #leaving == #letters and letters or leaving, false)\n",
        "",
    ),
    Mutant("redriven: missed", "redrive", "purge.take(from,", "purge.remove(from,"),
    Mutant("redriven: not counted", "redrive", "  record.count(from, 'redriven', #leaving)\n", ""),
    Mutant("redriven: the record left as it was", "redrive", "  record.save(from)\n", ""),
    Mutant("refused and redriven", "redrive", "if items.outcome[2 * i] ~= 'refused' then", "if true then"),
    Mutant("dead and redriven", "redrive", "if not message_ttl.is_over(from, now, entry) then", "if true then"),
    Mutant("redriven: no deadline", "redrive", "    items.deadline[2 * i] = deadline\n", ""),
    Mutant("redriven: nobody dies of a TTL of 0", "redrive", "    if dead then\n", "    if false then\n"),
    Mutant("refused: dead-lettered once more", "commands/redrive", "q.dead_letter_refused = false\n", ""),
    Mutant(
        "redriven: headers or deaths lost",
        "history",
        "text, #message_id, #deaths) .. message_id .. deaths .. extras",
        "text, #message_id, 0) .. message_id .. extras",
    ),
    Mutant("what is gone is never taken for redriven", "redrive", "or replay ~= '' and", "or false and"),
    Mutant("what is out is taken for redriven", "redrive", "(not missing or missing[seq]) and", ""),
)


def run(mutant: Mutant) -> str:
    """`found`, `survived`, or `does not apply`."""
    with tempfile.TemporaryDirectory(prefix="rqttl-mutant-") as folder:
        root = Path(folder)
        for part in ("lua", "rqttl", "tests"):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", root)
        if not mutant.applies(root):
            return "does not apply"
        path = mutant.path(root)
        path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
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
        sys.stdout.write(f"{outcome:<15} {mutant.name} ({mutant.script})\n")
    found = outcomes.count("found")
    sys.stdout.write(f"{found} of {len(chosen)} found\n")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
