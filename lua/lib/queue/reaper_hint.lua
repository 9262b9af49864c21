--- Hints to reapers: when a queue is due, and the name of the queue.
local reaper_hint = {}

--- The name of a queue, from the key of its record. Braces around the tag belong to the name unless `/` follows them.
function reaper_hint.queue_name(meta)
  local tag, suffix = string.match(meta, '^[^:]+:{([^}]*)}(.*):meta$')
  return (suffix == '' or string.byte(suffix) == 47) and tag .. suffix or '{' .. tag .. '}' .. suffix
end

--- Publish that the queue is due at `at`, earlier than known before.
function reaper_hint.send(meta, at)
  local channel = string.match(meta, '^[^:]+') .. ':due'
  redis.call('PUBLISH', channel, string.format('%d', at) .. ' ' .. reaper_hint.queue_name(meta))
end

--- Make the queue due now: its options have changed, and so may the deadlines of its messages. The sweep rings where
-- consumers may claim now.
function reaper_hint.due_now(meta)
  redis.call('HSET', meta, 'due_at', 0)
  if redis.call('HGET', meta, 'has_waiters') == '2' then redis.call('HSET', meta, 'has_waiters', 1) end
  reaper_hint.send(meta, 0)
end
