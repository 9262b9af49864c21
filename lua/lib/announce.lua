--- Telling reapers when a queue is due, and what a queue is called.
local announce = {}

function announce.name(meta)
  local tagged = string.match(meta, '^[^:]+:(.*):meta$')
  return string.match(tagged, '^{([^}]*)}$') or tagged
end

--- A queue has become due earlier than anybody knew.
function announce.due(meta, at)
  redis.call('PUBLISH', string.match(meta, '^[^:]+') .. ':due', string.format('%d', at) .. ' ' .. announce.name(meta))
end

--- Other options are in force: whatever they mean for the messages there is due now.
function announce.now(meta)
  redis.call('HSET', meta, 'due_at', 0)
  announce.due(meta, 0)
end
