--- The messages of a queue: the log (a stream), and `detached`, a hash of messages that compaction moved out of the
-- log.
--
-- An entry is `{seq, {packed header, body}}` everywhere, as XRANGE returns it. Every read is charged to the budget. In
-- `detached` a message is `<length of header>:<header><body>`.
--
-- @use budget
local log = {}

--- Return whether a value has the form of a sequence. `0-0` comes before all others.
function log.is_seq(seq)
  return seq == '0-0' or type(seq) == 'string' and #seq == 20 and string.find(seq, '^%d+%-%d+$') ~= nil
end

--- A message by its sequence, and whether it is in the log; nil if there is none.
function log.find(q, seq)
  local entry = redis.call('XRANGE', q.log, seq, seq)[1]
  if entry then
    budget.spend({entry})
    return entry, true
  end
  return log.find_detached(q, seq), false
end

--- A message of `detached`; nil if it is not there.
function log.find_detached(q, seq)
  local packed = redis.call('HGET', q.detached, seq)
  local entry = packed and {seq, log.unpack(packed)} or nil
  if entry then budget.spend({entry}) end
  return entry
end

--- The entries after `from` up to `upto` (`+`, or an instant in ms as text), at most `most`. The second result says
-- whether these are all.
function log.range(q, from, upto, most)
  local entries = {}
  while #entries < most and budget.is_open() do
    local large = q.large_upto and from < q.large_upto
    local stop = large and (upto == '+' or upto >= lazy(log).ms_digits(q.large_upto)) and q.large_upto or upto
    local n = budget.page_size(q, large, most - #entries)
    local page = redis.call('XRANGE', q.log, '(' .. from, stop, 'COUNT', n)
    budget.spend(page)
    entries = #entries == 0 and page or lazy(log).join(entries, page)
    if #page < n and stop == upto then
      return entries, true
    end
    from = #page == n and page[n][1] or stop
  end
  return entries, false
end

--- The sequences of entries.
function log.seqs(entries)
  local seqs = {}
  for i = 1, #entries do
    seqs[i] = entries[i][1]
  end
  return seqs
end

--- The ms in which a message was stored: the first part of its sequence.
function log.ms(seq)
  return tonumber(string.sub(seq, 1, 13))
end

--- The same as text of 13 digits. As a score it is cheaper than a number, which Redis would format.
function log.ms_digits(seq)
  return string.sub(seq, 1, 13)
end

--- The bytes of all bodies of entries.
function log.size(entries)
  local size = 0
  for _, entry in ipairs(entries) do
    size = size + #entry[2][2]
  end
  return size
end

--- Entries in one list, as a reply has them: sequence, packed header and body in turn. Redis asks each table of a reply
-- for seven fields that it does not have.
function log.flat(entries)
  local words = {}
  for i = 1, #entries do
    local entry = entries[i]
    local parts = entry[2]
    words[3 * i - 2], words[3 * i - 1], words[3 * i] = entry[1], parts[1], parts[2]
  end
  return words
end

--- Append `others` to `entries`.
function log.join(entries, others)
  for i = 1, #others do
    entries[#entries + 1] = others[i]
  end
  return entries
end

--- Remove messages for good. The first write frees memory, so Redis allows it without free memory. XTRIM removes
-- neighbours at the head of the log: it drops whole nodes instead of walking through them.
function log.remove(q, seqs, dense)
  if #seqs == 0 then return end
  local first = dense and not q.large_upto and #seqs > 1 and redis.call('XRANGE', q.log, '-', '+', 'COUNT', 1)[1]
  if first and first[1] == seqs[1] then
    local ms, serial = string.match(seqs[#seqs], '^(%d+)-(%d+)$')
    redis.call('XTRIM', q.log, 'MINID', string.format('%s-%d', ms, serial + 1))
  elseif redis.call('XDEL', q.log, unpack(seqs)) < #seqs then
    redis.call('HDEL', q.detached, unpack(seqs))
  end
end

--- The packed header and the body of a message as one text.
function log.pack(parts)
  return #parts[1] .. ':' .. parts[1] .. parts[2]
end

--- The packed header and the body of a message of `detached`. Without a length, which another program damaged, it is
-- all body.
function log.unpack(joined)
  local length, at = string.match(joined, '^(%d+):()')
  if not length then return {'', joined} end
  return {string.sub(joined, at, at + length - 1), string.sub(joined, at + length)}
end
