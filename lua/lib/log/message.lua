--- The packed header of a message, as far as scripts read it. `rqttl/protocol/codec.py` is its other half.
--
-- Any program that may write to Redis can write any header. Reading one never fails: a damaged part counts as absent.
local message = {}
local BEYOND = 1e15

--- The own deadline of the message, or nil.
function message.deadline(header)
  if header == '' then
    return nil
  end
  local deadline = tonumber(header) or tonumber((string.match(header, '^(%d*);')))
  return deadline and deadline >= 0 and deadline < BEYOND and deadline or nil -- neither infinite nor NaN
end

--- The length of the message id, the length of the history, and the position of the id. Nil for a damaged header.
function message.lengths(header)
  local id, deaths, at = string.match(header, '^%d*;(%d*);(%d*);()')
  if not at then return nil end
  id, deaths = tonumber(id) or 0, tonumber(deaths) or 0
  if at + id + deaths > #header + 1 then return nil end
  return id, deaths, at
end
