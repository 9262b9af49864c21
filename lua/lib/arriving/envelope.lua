--- The envelope of a message: the packed header that a sender writes, with a TTL in place of the deadline, without
-- deaths.
--
-- Clients write it correctly, but any program with the right to run scripts can send anything. So all of it is checked
-- before the first write.
local envelope = {}
local DIGITS = 15
local LONGEST_ID = 255

--- Read the TTL: its sign and its number, both empty without a TTL, and the position of the rest. Nil if it is
-- malformed.
function envelope.read_ttl(words)
  local sign, ms, at = string.match(words, '^([+@]?)(%d*)()')
  if (sign == '') == (ms == '') and #ms <= DIGITS then
    return sign, ms, at
  end
end

--- Check the rest. Returns its beginning up to the id, and the length from there to the end of the id, less 1; nil if
-- it is malformed. An envelope with the same beginning and length needs no second check.
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
