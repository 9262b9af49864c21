--- Take dead letters out for a redrive to a queue in another slot: ready ones of `seqs`, as a page; or end the page.
--
-- As for `relay`, the page under way stays as it is until the other queue has it, and its mover calls again with its
-- token. With the verdict `accepted`, `seqs` are the dead letters that found no room: they go back to their old places.
--
-- @use    clock record outbox redrive ready log memory reply
-- @keys   meta log detached expiry requeued states failures wakeup waiters outgoing redrive
-- @args   now target token verdict fresh seqs...
-- @reply  number token held last letters: the page; the ms for which another mover has it; the last sequence looked at,
-- @reply  or empty; and sequence, header and body in turn

local now = clock.now(arg.now)
local version = redis.call('HGET', q.meta, 'version')
local is_there = version and not record.open_all(q, version)
memory.may_pass(q)
q.outbox = q.redrive
local field = 'redrive>' .. arg.target
local line = outbox.read(q.outgoing, field, now)
local letters, held, last = {}, 0, nil
if arg.verdict == 'accepted' then
  if arg.token == line.token then
    if is_there then redrive.settle(q, now, redis.call('XRANGE', q.outbox, '-', line.last), arg.seqs) end
    outbox.close(q, line)
  end
elseif line.token ~= '-' then
  if arg.verdict ~= '' and arg.token == line.token then line.number = arg.verdict + 1 end
  letters, held = outbox.again(q, now, line, arg.token, arg.fresh)
elseif is_there then
  letters, last = redrive.find(q, now, arg.seqs)
  if #letters > 0 then
    outbox.put(q, now, line, letters, arg.fresh) -- first: its key may have another type
    ready.remove(q, letters, false) -- their failures stay, for those that come back
  end
end
if is_there then record.save(q) end
outbox.save(q, now, field, line)
return reply.ok(q, line.number, line.token, held, last or '', reply.list(log.flat(letters)))
