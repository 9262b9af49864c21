--- What is wrong with a message's places, and putting it right. What is decided goes into a plan, which is carried out
-- as a whole.
--
-- @use places message history
local damage = {}
local SETS = {'leases', 'delayed', 'requeued', 'expiry'}

function damage.plan()
  return {leases = {}, delayed = {}, requeued = {}, expiry = {}, failures = {}, back = {}, deadlines = {}}
end

--- Look at one id; `parts` are those of its entry in the log, if they are known. Returns a word for what is wrong (nil:
-- nothing), and the size of the body if the message is ready.
--   gone      it is in a set, and nowhere else           doubled   it is in two places
--   lost      it is in no place: nobody would get it     deadline  `expiry` does not say what its header says
--   header    its header is damaged; that cannot be mended
function damage.judge(q, id, plan, parts)
  local in_log = true
  if not parts then parts, in_log = places.find(q, id) end
  if not parts then return damage.forget(q, id, plan) end
  local at, wrong = places.of(q, id, in_log), not history.is_sound(parts[1]) and 'header' or nil
  local own = at.ready and message.deadline(parts[1]) or nil
  if own ~= tonumber(at.expiry or '') then
    local into = own and plan.deadlines or plan.expiry
    wrong, into[#into + 1], into[#into + 2] = 'deadline', own or id, own and id
  end
  for i = 1, 3 do
    local set = SETS[i]
    if at[set] and set ~= at.home then
      wrong, plan[set][#plan[set] + 1] = 'duplicate', id
    end
  end
  local ms = tonumber(string.sub(id, 1, 13))
  if at.home == 'requeued' and tonumber(at.requeued or '') ~= ms then
    wrong, plan.back[#plan.back + 1], plan.back[#plan.back + 2] = 'unreachable', ms, id
  end
  return wrong, at.ready and #parts[2] or nil
end

--- No message has this id: it leaves all sets.
function damage.forget(q, id, plan)
  local wrong
  for _, set in ipairs(SETS) do
    if redis.call('ZSCORE', q[set], id) then
      wrong, plan[set][#plan[set] + 1] = 'orphan', id
    end
  end
  if redis.call('HEXISTS', q.failures, id) == 1 then
    wrong, plan.failures[#plan.failures + 1] = 'orphan', id
  end
  return wrong
end

--- Carry out a plan. What is taken out comes first.
function damage.mend(q, plan)
  for _, set in ipairs(SETS) do
    if #plan[set] > 0 then redis.call('ZREM', q[set], unpack(plan[set])) end
  end
  if #plan.failures > 0 then redis.call('HDEL', q.failures, unpack(plan.failures)) end
  if #plan.back > 0 then redis.call('ZADD', q.requeued, unpack(plan.back)) end
  if #plan.deadlines > 0 then redis.call('ZADD', q.expiry, unpack(plan.deadlines)) end
end
