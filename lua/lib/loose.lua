--- Messages that were moved out of the log, one by one, in a hash: id -> `<length of the header>:<header><body>`.
local loose = {}

--- The two parts of an entry in one string.
function loose.join(parts)
  return #parts[1] .. ':' .. parts[1] .. parts[2]
end

function loose.split(joined)
  local length, at = string.match(joined, '^(%d+):()')
  return {string.sub(joined, at, at + length - 1), string.sub(joined, at + length)}
end
