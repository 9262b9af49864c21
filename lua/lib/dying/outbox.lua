--- The outbox: dead letters on their way to a queue in another slot of the cluster. No script may touch both queues.
--
-- For each target they wait in a stream, in the order of death. `outgoing` has a line for each target, which
-- becomes the table of `outbox.read`. A mover takes the first ones as a page. The page stays as it is until the
-- target has stored it, so a page that is sent again is the same one, and has the same number and token.
--
-- @use record reply reaper_hint
local outbox = {}
local HOLD, MOST_HOLD = 2000, 30000
local LETTERS, BYTES = 250, 4194304
local STUCK = 1000
local MEMORY = 604800000

--- The line of a target. `letters` wait. Of the page under way: its `number` (of none: that of the last page), `token`
-- (`-`: there is none), the id of its `last` one, the ms until which its mover has it, and the `hold` of the next
-- mover in ms.
function outbox.read(outgoing, target, now)
  return outbox.line(redis.call('HGET', outgoing, target) or '0 0 - - 0 0', now)
end

--- A mover that has its page for longer than `hold` took it before a step back of the clock: it counts as dead.
function outbox.line(text, now)
  local letters, number, token, last, ends, hold = string.match(text, '^(%d+) (%d+) (%S+) (%S+) (%d+) (%d+)$')
  ends, hold = tonumber(ends), tonumber(hold)
  return {letters = tonumber(letters), number = tonumber(number), token = token, last = last,
    ends = ends <= now + hold and ends or 0, hold = hold}
end

function outbox.write(outgoing, target, line)
  redis.call('HSET', outgoing, target, string.format('%d %d %s %s %d %d', line.letters, line.number, line.token,
    line.last, line.ends, line.hold))
end

--- Note that `n` dead letters were added. If nobody is moving them, ask the caller to.
function outbox.added(q, into, now, n)
  local line = outbox.read(into.outgoing, into.name, now)
  line.letters = line.letters + n
  outbox.write(into.outgoing, into.name, line)
  if line.ends > now or into.is_noted then return end
  into.is_noted = true
  reply.note(q, 'move', reaper_hint.queue_name(q.meta) .. '>' .. into.name)
  local known = tonumber(redis.call('HGET', q.meta, 'outgoing_at'))
  if not known or known > now + HOLD then
    redis.call('HSET', q.meta, 'outgoing_at', string.format('%d', now + HOLD))
    record.schedule_sweep(q, now + HOLD)
  end
end

--- Ask the caller of a sweep to move dead letters, if nobody moves them. Returns the time of the next look. One that is
-- further away than any was set before a step back of the clock.
function outbox.remind(q, now, outgoing_at)
  if outgoing_at > now and outgoing_at <= now + MOST_HOLD then return outgoing_at, false end
  reply.note(q, 'move', reaper_hint.queue_name(q.meta))
  redis.call('HSET', q.meta, 'outgoing_at', string.format('%d', now + STUCK))
  return now + STUCK, true
end

--- Ask a reaper to move those that nobody moves, also if another caller was asked before: it may lack the rights.
function outbox.offer(q, now)
  for _, text in ipairs(redis.call('HVALS', q.outgoing)) do
    local line = outbox.line(text, now)
    if line.letters > 0 and line.ends <= now then return reply.note(q, 'move', reaper_hint.queue_name(q.meta)) end
  end
end

--- The number of dead letters that redrives have taken out. They are messages of their queue: some may come back.
function outbox.redriving(q)
  local lines, n = redis.call('HGETALL', q.outgoing), 0
  for i = 1, #lines, 2 do
    -- a damaged line stands for one, too
    if string.find(lines[i], '^redrive>') then n = n + (tonumber(string.match(lines[i + 1], '^%d+ ')) or 1) end
  end
  return n
end

--- The target has stored the page under way, or the page is empty now.
function outbox.close(q, line)
  local ms, serial = string.match(line.last, '^(%d+)-(%d+)$')
  redis.call('XTRIM', q.outbox, 'MINID', string.format('%s-%d', ms, serial + 1))
  line.letters, line.token, line.last, line.ends, line.hold = redis.call('XLEN', q.outbox), '-', '-', 0, 0
end

--- The page under way for the mover that knows its `token`, or that asked for it as `fresh`; and the ms for which
-- another mover has it.
function outbox.again(q, now, line, token, fresh)
  local is_own = line.token == token or line.token == outbox.token(fresh, line.last)
  if not is_own and line.ends > now then return {}, line.ends - now end
  if not is_own then line.hold = math.min(MOST_HOLD, 2 * line.hold) end
  line.ends = now + line.hold
  local letters = redis.call('XRANGE', q.outbox, '-', line.last)
  if #letters == 0 then outbox.close(q, line) end
  return letters, 0
end

--- Make a page of the first dead letters, at most 250 and about 4 MB.
function outbox.next_page(q, now, line, fresh)
  local letters, size, largest, after = {}, 0, nil, '-'
  while #letters < LETTERS and size < BYTES do
    local fitting = largest and math.floor((BYTES - size) / largest) or 1
    local most = math.min(LETTERS - #letters, math.max(1, fitting))
    local some = redis.call('XRANGE', q.outbox, after, '+', 'COUNT', most)
    for _, letter in ipairs(some) do
      local bytes = #letter[2][1] + #letter[2][2]
      letters[#letters + 1], size, largest = letter, size + bytes, math.max(largest or 1, bytes)
      after = '(' .. letter[1]
    end
    if #some < most then break end
  end
  if #letters > 0 then outbox.open(now, line, letters, fresh) else line.letters = 0 end
  return letters
end

--- Make a page of these dead letters, which were taken out of the queue for a redrive.
function outbox.put(q, now, line, letters, fresh)
  table.sort(letters, function(a, b) return a[1] < b[1] end)
  for _, letter in ipairs(letters) do
    redis.call('XADD', q.outbox, letter[1], letter[2][1], letter[2][2])
  end
  line.letters = #letters
  outbox.open(now, line, letters, fresh)
end

--- Give a page its number, its token and its mover.
function outbox.open(now, line, letters, fresh)
  line.number, line.last = line.number + 1, letters[#letters][1]
  line.token, line.hold, line.ends = outbox.token(fresh, line.last), HOLD, now + HOLD
end

--- The token of a page. Its last dead letter is in it: a mover without a reply repeats its call, and meanwhile a
-- failover with lost writes may have brought others.
function outbox.token(fresh, last)
  return fresh .. '@' .. last
end

--- What a target knows of a page, by its memory of the source: the results of a page that it has, or the number of the
-- last page, if that of this page is not above it. Ids and numbers of a source may go back, when its server fails over
-- and loses writes; its tokens never come again.
function outbox.recall(memory, number, token)
  local last, last_token, results = string.match(redis.call('GET', memory) or '0 - ', '^(%d+) (%S+) (.*)$')
  if last_token == token then return results end
  return nil, tonumber(number) <= tonumber(last) and last or nil
end

--- Remember a page that is stored now. Redis forgets a source after a week without a page.
function outbox.remember(memory, number, token, results)
  redis.call('SET', memory, number .. ' ' .. token .. ' ' .. results, 'PX', MEMORY)
end

--- Store the line, and when the outbox is to be looked at again: at once, but for pages under way. Nothing stays of a
-- deleted queue without dead letters.
function outbox.save(q, now, target, line)
  outbox.write(q.outgoing, target, line)
  if line.letters == 0 then redis.call('UNLINK', q.outbox) end
  local due_at = redis.call('HGET', q.meta, 'due_at')
  if not due_at then
    if line.letters == 0 then redis.call('HDEL', q.outgoing, target) end
    return
  end
  local earliest
  for _, text in ipairs(redis.call('HVALS', q.outgoing)) do
    local other = outbox.line(text, now)
    local at = other.token == '-' and other.ends or math.max(other.ends, now + STUCK)
    if other.letters > 0 and (not earliest or at < earliest) then earliest = at end
  end
  redis.call('HSET', q.meta, 'outgoing_at', earliest and string.format('%d', earliest) or '')
  if earliest and (due_at == '' or earliest < tonumber(due_at)) then
    redis.call('HSET', q.meta, 'due_at', string.format('%d', earliest))
    reaper_hint.send(q.meta, earliest)
  end
end
