--- Telling reapers when a queue is due, and what a queue is called.
local announce = {}

--- The name of a queue, from the key of its record. Braces around the tag are part of the name if more than `/` follows.
function announce.name(meta)
  local tag, rest = string.match(meta, '^[^:]+:{([^}]*)}(.*):meta$')
  return (rest == '' or string.byte(rest) == 47) and tag .. rest or '{' .. tag .. '}' .. rest
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
