--- The packed header of a message, as far as scripts read it (`rqttl/codec.py` is the other half).
local message = {}

--- The message's own deadline, or nil.
function message.deadline(header)
  if header == '' then
    return nil
  end
  return tonumber(header) or tonumber((string.match(header, '^%d*')))
end
