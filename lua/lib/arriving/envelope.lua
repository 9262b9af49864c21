--- The words of a sender about a message: a packed header without deaths, with a TTL in place of the deadline.
--
-- Clients pack it well, but whoever may run scripts can send anything. So every word is checked before the first write.
local envelope = {}
local DIGITS = 15
local LONGEST_ID = 255

--- Check the TTL. Returns its sign and its number, both empty without one, and where the rest begins; nothing, if it is
-- malformed.
function envelope.read_ttl(words)
  local sign, ms, at = string.match(words, '^([+@]?)(%d*)()')
  if (sign == '') == (ms == '') and #ms <= DIGITS then
    return sign, ms, at
  end
end

--- Check what follows a TTL. Returns how it begins, up to the id, and the length from there to the end of the id, less 1;
-- nothing, if it is malformed. What begins alike and is as long needs no second look.
function envelope.read_header(words, at)
  local length, start = string.match(words, '^;(%d*);;()', at)
  if not start then
    return nil
  elseif length == '' then
    return ';;;', start - at - 1
  elseif #length > 3 or string.byte(length) == 48 or length + 0 > LONGEST_ID or start + length - 1 > #words then
    return nil
  end
  return string.sub(words, at, start - 1), start - at + length - 1
end
