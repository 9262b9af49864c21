--- Take a page of the dead letters that wait for a queue in another slot: the first ones, at most 250.
--
-- A mover calls it again with the token of the page, and with the `verdict` of the target: `accepted`, or the number of
-- the last page that the target has stored, if it is not below that of this page. The token of the next page begins
-- with `fresh`. Without `more` there is no next page. With the verdict `forbidden` the page is free for others.
--
-- @use    clock outbox reply memory
-- @keys   meta outgoing outbox
-- @args   now target token verdict fresh more
-- @reply  number token held letters...: the page, header and body in turn; and the ms for which another mover
-- @reply  has it

local now = clock.now(arg.now)
memory.may_pass(q)
local line = outbox.read(q.outgoing, arg.target, now)
if arg.verdict ~= '' and arg.token == line.token then
  if arg.verdict == 'accepted' then
    outbox.close(q, line)
  elseif arg.verdict == 'forbidden' then
    line.ends = now
  else
    line.number = arg.verdict + 1
  end
end
local letters, held = {}, 0
if line.token ~= '-' and arg.verdict ~= 'forbidden' then
  letters, held = outbox.again(q, now, line, arg.token, arg.fresh)
elseif arg.more ~= '' then
  letters = outbox.next_page(q, now, line, arg.fresh)
end
outbox.save(q, now, arg.target, line)
local words = {}
for _, letter in ipairs(letters) do
  words[#words + 1], words[#words + 2] = letter[2][1], letter[2][2]
end
return reply.ok(q, line.number, line.token, held, unpack(words))
