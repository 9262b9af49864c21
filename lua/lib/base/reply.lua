--- The forms of replies: a word first, then its values. Refusals are data, never errors of Redis.
local reply = {}

--- A refusal: its code, and its details.
function reply.refuse(code, ...)
  return {'refused', code, ...}
end

--- Ask for the same call again, after what this one has done. It may have notes, too.
function reply.again(q)
  return {'refused', 'retry', unpack(q.notes or {})}
end

--- A success. Its notes tell the client what to do next.
function reply.ok(q, ...)
  return {'ok', q.notes or '', ...}
end

--- Tell the client about another queue: `created` (enter it into the registry), `deleted` or `sweep` (it is due now).
function reply.note(q, purpose, name)
  q.notes = q.notes or {}
  q.notes[#q.notes + 1] = purpose
  q.notes[#q.notes + 1] = name
end

--- A list as a value of a reply; `''` if it is empty. Redis asks each table of a reply for seven fields that it does
-- not have.
function reply.list(values)
  return #values > 0 and values or ''
end
