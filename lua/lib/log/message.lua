--- The packed header of a message, as far as scripts read it (`rqttl/protocol/codec.py` is the other half).
--
-- Whoever may write to Redis can write any header. So reading one never fails: what is damaged counts as absent.
local message = {}
local DIGITS = 15
local BEYOND = 1e15

--- The message's own deadline, or nil.
function message.deadline(header)
  if header == '' then
    return nil
  end
  local own = tonumber(header) or tonumber((string.match(header, '^(%d*);')))
  return own and own >= 0 and own < BEYOND and own or nil -- so neither infinite nor no number
end

--- The lengths of the id and of the history in a full header, and where the id begins; nothing, if the header is none.
function message.lengths(header)
  local id, deaths, at = string.match(header, '^%d*;(%d*);(%d*);()')
  if not at then return nil end
  id, deaths = tonumber(id) or 0, tonumber(deaths) or 0
  if at + id + deaths > #header + 1 then return nil end
  return id, deaths, at
end

--- Whether all that scripts read of a header can be read.
function message.is_sound(header)
  local digits, at = string.match(header, '^(%d*)()')
  if #digits > DIGITS then return false end
  return at > #header or message.lengths(header) ~= nil
end
