--- Taking out messages whose time is over, from anywhere in the queue, in the order of their deadlines in force.
-- Own deadlines are in the sorted set `expiry`; retention needs no index, because ids are times. A delayed message is
-- due at its deadline at the latest.
--
-- Ready messages die in that order across steps. Delayed ones die among them, but for two cases: alone they die in the order
-- in which they are due, sorted in each step; and one behind more living ones than a step reads comes later. A leased one
-- dies when it comes back, in order among those that come back in the same step.
--- Which messages are over first, where own deadlines, retention and delays meet: a merge of three orders.
--
-- @use message_ttl ready log stale dead_letter record candidates
local expiry = {}

--- Up to `most` messages whose time is over, the earliest deadlines. Nothing is written. Of `all`, `kept` head the queue,
-- `own` are ready anywhere, `away` are delayed. `full` says that more may be over.
function expiry.overdue(q, now, most)
  local due = redis.call('ZRANGEBYSCORE', q.expiry, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  local back = redis.call('ZRANGEBYSCORE', q.delayed, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  if q.message_ttl or #back > 0 then
    return lazy(expiry).merge(q, now, most, due, back)
  end
  local ids = {}
  for i = 1, #due, 2 do
    ids[#ids + 1] = due[i]
  end
  local own, looked = stale.read(q, q.expiry, ids)
  return {all = own, own = own, kept = {}, away = {}, full = looked < #ids or #ids == most}
end

--- Bury what `overdue` found. Returns how many.
function expiry.bury(q, now, dead)
  if #dead.all == 0 then return 0 end
  ready.remove_unhandled(q, dead.kept, true)
  ready.remove_unhandled(q, dead.own, false)
  if #dead.away > 0 then
    local ids = {}
    for i, entry in ipairs(dead.away) do
      ids[i] = entry[1]
    end
    ready.record_loss(q, dead.away)
    log.remove(q, ids)
    redis.call('ZREM', q.delayed, unpack(ids))
  end
  lazy(dead_letter).bury(q, now, 'expired', dead.all)
  return #dead.all
end

--- Bury what is overdue, so that it takes no room. Returns whether more is.
function expiry.make_room(q, now, most)
  local dead = expiry.overdue(q, now, most)
  expiry.bury(q, now, dead)
  return dead.full
end

--- Ready messages whose time is over were in the way of others. They die; or, where others are to die before them
-- (`more`), they wait for that in `delayed`, due at their deadlines.
function expiry.bury_or_delay(q, now, entries, more)
  if more then return expiry.delay(q, now, entries) end
  message_ttl.sort(q, entries)
  expiry.bury(q, now, {all = entries, own = entries, kept = {}, away = {}})
end

function expiry.delay(q, now, entries)
  local ids, members, size = {}, {}, 0
  for i, entry in ipairs(entries) do
    ids[i], size = entry[1], size + #entry[2][2]
    members[2 * i - 1], members[2 * i] = message_ttl.deadline(q, entry[1], entry[2][1]), entry[1]
  end
  redis.call('ZREM', q.expiry, unpack(ids))
  redis.call('ZREM', q.requeued, unpack(ids))
  redis.call('ZADD', q.delayed, unpack(members))
  q.ready_bytes = q.ready_bytes - size
  record.schedule_sweep(q, now)
end

--- What `expiry.overdue` gives. `due` are ids of the set `expiry`, each with its score; `back` are delayed ids that are
-- due. Of these the dead are found by their headers.
function expiry.merge(q, now, most, due, back)
  local found = {at = {}, entry = {}, ids = {}, kept = {}, away = {}, full = #due == 2 * most, cut = #back == 2 * most}
  candidates.retained(q, most, found, #due == 2 * most and tonumber(due[#due]) or now)
  candidates.indexed(q, found, due)
  candidates.delayed(q, now, found, back)
  local at, ids, chosen = found.at, found.ids, {}
  table.sort(ids, function(a, b) return at[a] < at[b] or at[a] == at[b] and a < b end)
  local dead = {all = {}, kept = {dense = found.kept.dense}, own = {}, away = {}, full = found.full or #ids > most}
  for _, id in ipairs(ids) do
    local late = found.limit and at[id] > found.limit and #dead.all > 0
    if #dead.all == most or not found.entry[id] or late then
      dead.full = true
      break
    end
    dead.all[#dead.all + 1], chosen[id] = found.entry[id], true
  end
  expiry.divide(dead, found, chosen)
  return dead
end

--- Where the chosen ones are: the first of those that head the queue, ready anywhere, or delayed.
function expiry.divide(dead, found, chosen)
  local heads = {}
  for _, entry in ipairs(found.kept) do
    if not chosen[entry[1]] then break end
    dead.kept[#dead.kept + 1], heads[entry[1]] = entry, true
  end
  for _, entry in ipairs(dead.all) do
    local into = found.away[entry[1]] and dead.away or dead.own
    if not heads[entry[1]] then into[#into + 1] = entry end
  end
end
