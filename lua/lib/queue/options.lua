--- The options of a queue that scripts read. Options for clients alone are in the field `options`.
--
-- @use control
local options = {}
local ABOUT = 'a queue of rqttl: lua/README.md of the project says what each field holds'

--- Read the options of a queue that has some.
function options.read(q)
  local retention, max_length, max_length_bytes, overflow, max_deliveries, default_ttl, min_ttl, max_ttl, never_expire,
    window, paused, max_leased, rate, burst, passes_on = unpack(redis.call('HMGET', q.meta, 'message_ttl', 'max_length',
    'max_length_bytes', 'overflow', 'max_deliveries', 'default_ttl', 'min_ttl', 'max_ttl', 'never_expire',
    'duplicate_window', 'paused', 'max_leased', 'rate', 'burst', 'passes_on'))
  q.message_ttl, q.max_length = tonumber(retention), tonumber(max_length)
  q.max_length_bytes = tonumber(max_length_bytes)
  q.drops_head, q.dead_letter_refused = overflow == 'drop-head', overflow == 'reject-publish-dlx'
  q.max_deliveries, q.default_ttl, q.min_ttl = tonumber(max_deliveries), tonumber(default_ttl), tonumber(min_ttl)
  q.max_ttl, q.never_expire, q.window = tonumber(max_ttl), never_expire, tonumber(window)
  q.passes_on, q.has_options = passes_on and not paused, true
  if paused or max_leased or rate then lazy(control).take(q, paused, max_leased, rate, burst) end
end

--- Create the record of a queue with the options of no declaration and no policy. `last` comes from `options.last_seq`.
-- One long value makes Redis store the record as a hash table, where a look-up takes constant time.
function options.create(meta, version, explicit, now, last)
  redis.call('HSET', meta, 'version', version, 'about', ABOUT, 'explicit', explicit,
    'created_at', string.format('%d', now), 'cursor', '0-0', 'trimmed_upto', '0-0', 'last_id', last, 'ready_bytes', 0,
    'due_at', '', 'lease_grants', 0, 'holds_dead_letters', 0, 'has_waiters', 0, 'enqueued', 0, 'delivered', 0,
    'declared', '{}', 'options', '{}', 'policies', 0, 'option_set', 'default', 'overflow', 'drop-head')
end

--- Put the options of a call in force, and store the declared ones if the call has some.
function options.put(meta, in_force, policies, declared, absent, fields)
  if absent ~= '0' then redis.call('HDEL', meta, unpack(fields, 1, tonumber(absent))) end
  redis.call('HSET', meta, 'options', in_force, 'policies', policies, unpack(fields, absent + 1))
  if declared ~= '' then redis.call('HSET', meta, 'declared', declared) end
end

--- Compare the options of the lifetime with these values: true if they are the same.
function options.same(meta, expires, idle)
  local now_expires, now_idle = unpack(redis.call('HMGET', meta, 'expires', 'auto_delete_on_idle'))
  return expires == now_expires and idle == now_idle
end

--- The last sequence of a new queue. Its messages follow those of a deleted queue of the same name, also within one
-- millisecond or after a step back of the clock. So no delivery of the deleted queue fits a message of the new one.
function options.last_seq(tombstone, now)
  local last = '0-0'
  for _, seq in ipairs(redis.call('HMGET', tombstone, 'last_id', 'trimmed_upto')) do
    if seq and seq > last and seq >= string.format('%013d-', now) then last = seq end
  end
  return last
end
