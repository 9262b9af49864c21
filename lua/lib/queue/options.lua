--- What scripts know of a queue's options. What only clients act on is in the field `options` alone.
local options = {}
local ABOUT = 'a queue of rqttl: lua/README.md of the project says what each field holds'

--- The options in force, of a queue that is not plain.
function options.read(q)
  local m = redis.call('HMGET', q.meta, 'message_ttl', 'max_length', 'max_length_bytes', 'overflow', 'max_deliveries',
    'default_ttl', 'min_ttl', 'max_ttl', 'never_expire', 'duplicate_window')
  q.message_ttl, q.max_length, q.max_length_bytes = tonumber(m[1]), tonumber(m[2]), tonumber(m[3])
  q.drops_head, q.dead_letters_new = m[4] == 'drop-head', m[4] == 'reject-publish-dlx'
  q.max_deliveries, q.default_ttl, q.min_ttl = tonumber(m[5]), tonumber(m[6]), tonumber(m[7])
  q.max_ttl, q.never_expire, q.window = tonumber(m[8]), m[9], tonumber(m[10])
end

--- Make the record of a new queue; `last` is what `options.last_seq` gave. `fields` are its options, name and value in turn.
-- One long value makes Redis keep the record as a hash table, in which fields are found without a walk.
function options.create(meta, version, explicit, now, last, fields)
  redis.call('HSET', meta, 'version', version, 'about', ABOUT, 'explicit', explicit, 'created_at',
    string.format('%d', now), 'cursor', '0-0', 'trimmed_upto', '0-0', 'last_id', last, 'ready_bytes', 0, 'due_at', '', 'lease_grants', 0,
    'holds_dead_letters', 0, 'has_waiters', 0, 'enqueued', 0, 'delivered', 0, 'options', '{}', 'option_set', 'default',
    'overflow', 'drop-head', unpack(fields or {}))
end

--- The sequence that a new queue counts as its last one. Its messages come behind those of a deleted queue of this name
-- (`trace`), also within the same millisecond, or after a step back of the clock: no delivery of that queue fits them.
function options.last_seq(trace, now)
  local last = '0-0'
  for _, place in ipairs(redis.call('HMGET', trace, 'last_id', 'trimmed_upto')) do
    if place and place > last and place >= string.format('%013d-', now) then last = place end
  end
  return last
end
