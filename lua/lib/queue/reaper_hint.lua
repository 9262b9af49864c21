--- Telling reapers when a queue is due, and what a queue is called.
local reaper_hint = {}

function reaper_hint.queue_name(meta)
  local tagged = string.match(meta, '^[^:]+:(.*):meta$')
  return string.match(tagged, '^{([^}]*)}$') or tagged
end

--- A queue has become due earlier than anybody knew.
function reaper_hint.send(meta, at)
  redis.call('PUBLISH', string.match(meta, '^[^:]+') .. ':due', string.format('%d', at) .. ' ' .. reaper_hint.queue_name(meta))
end

--- Other options are in force: whatever they mean for the messages there is due now.
function reaper_hint.due_now(meta)
  redis.call('HSET', meta, 'due_at', 0)
  reaper_hint.send(meta, 0)
end
