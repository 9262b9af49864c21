--- The shapes of answers: a word first, then what belongs to it. Refusals are data, never Redis errors.
local reply = {}

function reply.refuse(code, ...)
  return {'refused', code, ...}
end

--- What a client does next: run the call again, look after other queues.
function reply.ok(q, ...)
  return {'ok', q.notes or '', ...}
end

--- Tell the client about another queue: `created` (enter it into the registry) or `sweep` (it is due now).
function reply.note(q, what, name)
  q.notes = q.notes or {}
  q.notes[#q.notes + 1] = what
  q.notes[#q.notes + 1] = name
end
