--- Reading messages by their sequences, as far as the budget goes.
--
-- @use log budget
local fetch = {}

--- Read the messages of `seqs`. Returns the entries in the same order, the number of sequences that it looked at, and
-- the sequences without a message. `dense` is set if all entries are neighbours in the log.
function fetch.read(q, seqs)
  local entries, missing, at = {}, {}, 0
  while at < #seqs and budget.is_open() do
    local last = fetch.reach(q, seqs, at + 1)
    local page, same = fetch.between(q, seqs, at + 1, last)
    if same and last - at == #seqs then
      page.dense = true
      return page, #seqs, missing
    end
    at = lazy(fetch).pick(q, seqs, at + 1, last, page, entries, missing)
  end
  return entries, at, missing
end

--- The number of the last sequence that one read may include, from number `first` on.
function fetch.reach(q, seqs, first)
  local large = q.large_upto and seqs[first] <= q.large_upto
  local last = first + budget.page_size(q, large, #seqs - first + 1) - 1
  for i = first + 1, q.large_upto and last or 0 do
    if (seqs[i] <= q.large_upto) ~= large then return i - 1 end
  end
  return last
end

--- Read as many entries as there are sequences, from the lowest to the highest. The second result says whether the
-- entries have exactly these sequences.
function fetch.between(q, seqs, first, last)
  local low, high = seqs[first], seqs[first]
  for i = first + 1, last do
    if seqs[i] < low then low = seqs[i] elseif seqs[i] > high then high = seqs[i] end
  end
  if not (log.is_seq(low) and log.is_seq(high)) then return {}, false end
  local page = redis.call('XRANGE', q.log, low, high, 'COUNT', last - first + 1)
  budget.spend(page)
  local same = #page == last - first + 1
  for i = 1, #page do
    same = same and page[i][1] == seqs[first + i - 1]
  end
  return page, same
end

--- Sort the sequences of one read into `entries` and `missing`. Returns the number of the last sequence within the
-- budget; the first sequence of all is always within it.
function fetch.pick(q, seqs, first, last, page, entries, missing)
  local by_seq = {}
  for _, entry in ipairs(page) do
    by_seq[entry[1]] = entry
  end
  for i = first, last do
    local seq = seqs[i]
    local entry = by_seq[seq]
    if not entry and i > 1 and not budget.is_open() then return i - 1 end
    entry = entry or log.is_seq(seq) and log.find(q, seq)
    if entry then entries[#entries + 1] = entry else missing[#missing + 1] = seq end
  end
  return last
end
