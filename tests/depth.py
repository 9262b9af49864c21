"""A look at the depth of a queue between two scripts, by its keys: what `stats` tells is not asked."""

from __future__ import annotations

#: The parts of a queue whose keys `DEPTH` takes, in order.
DEPTH_PARTS = ("log", "detached", "leases", "delayed", "requeued", "meta")

#: A script: what is ready, and how many of its bytes; and the same without messages that came back.
DEPTH = """
local ready = redis.call('XLEN', KEYS[1]) + redis.call('HLEN', KEYS[2]) - redis.call('ZCARD', KEYS[3])
  - redis.call('ZCARD', KEYS[4])
local bytes, back = tonumber(redis.call('HGET', KEYS[6], 'ready_bytes')), redis.call('ZRANGE', KEYS[5], 0, -1)
local fresh = bytes
for _, id in ipairs(back) do
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  fresh = fresh - (entry and #entry[2][2] or 0)
end
return {ready, bytes, ready - #back, fresh}
"""
