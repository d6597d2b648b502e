/**
 * All Lua of the package: one script that takes any number of steps of the lease store's contract (see `core/lease-store.ts`),
 * so that what a process asks for in one turn of its event loop is few requests. A script is atomic, so each step is.
 *
 * Per bucket `b` of keys (its hash tag keeps them in one slot of a cluster):
 *   prefix:{b}:lease:<key>     "<owner> <generation>", with " w" behind it once a process waits for the key;
 *                              "> <waiter>" while a freed key is kept for a woken waiter; expires
 *   prefix:{b}:waiters:<key>   list of the processes that wait for the key, first come first; expires
 *   prefix:{b}:generation      the last generation issued for any key of the bucket
 *   prefix:{b}:wake            channel: "<waiter or -> <reserved ms> <key>"
 *
 * The server's clock in microseconds is below 2^53 until the year 2255, so the doubles of Lua are exact; `%d` writes them
 * without an exponent. A step that fails (a full server, a key of another type that somebody else made) fails alone: it answers
 * -1 and why not, and its neighbours in the request are done.
 *
 * Most leases are taken and released with nobody waiting. The mark on the lease tells so: a release then leaves the list of
 * waiters alone, as does an acquire of a process that is not in it. A mark too many costs a look at the list. One too few
 * (the marked lease expired, and its key was taken by somebody who does not wait) lasts until a waiter looks again.
 */
export const STEPS = `
-- How long a freed key is kept for the process that was woken, ms.
local RESERVED_MS = 100

local call, attempt = redis.call, redis.pcall
local sub, format = string.sub, string.format

-- The clock in microseconds stands still while a script runs.
local now
local function clock()
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  return now
end

-- Grants the lease to owner under the next generation of the bucket: max(last issued + 1, clock, floor + 1), at most 2^53 - 1.
-- Answers the generation, or nil and why not.
local function grant(lease, counter, owner, ttl, floor, mark)
  local last = tonumber(call('GET', counter) or 0) or 0
  local generation = math.max(last + 1, clock(), floor + 1)
  if generation > 9007199254740991 then return nil, 'exhausted' end
  local text = format('%d', generation)
  local done = attempt('SET', counter, text)
  if done.err then return nil, done.err end
  done = attempt('SET', lease, owner .. ' ' .. text .. mark, 'PX', ttl)
  if done.err then return nil, done.err end
  return text
end

local function holds(held, owner)
  return held and sub(held, 1, #owner + 1) == owner .. ' '
end

-- ' w' or ''.
local function markOf(held)
  return sub(held, -2) == ' w' and ' w' or ''
end

local function enqueue(waiters, waiter, forMs)
  if not call('LPOS', waiters, waiter) then attempt('RPUSH', waiters, waiter) end
  if call('PTTL', waiters) < tonumber(forMs) then call('PEXPIRE', waiters, forMs) end
end

local function wake(lease, counter, waiter, forMs)
  local bucket = #counter - #':generation'
  call('PUBLISH', sub(counter, 1, bucket) .. ':wake', waiter .. ' ' .. forMs .. ' ' .. sub(lease, bucket + #':lease:' + 1))
end

-- Frees the lease for the first process that waits for it and is not except: keeps it for that one, and wakes it.
local function serveWaiter(lease, counter, waiters, except)
  local waiter = call('LPOP', waiters)
  if waiter == except then waiter = call('LPOP', waiters) end
  if not waiter then return false end
  if attempt('SET', lease, '> ' .. waiter, 'PX', RESERVED_MS).err then call('DEL', lease) end
  wake(lease, counter, waiter, RESERVED_MS)
  return true
end

-- inLine: whether the waiter may be in the list. Answers 1, generation; 0, remaining ms where it is busy (-1: the key has no
-- expiry, so something else made it).
local function acquire(lease, counter, waiters, owner, ttl, floor, waiter, forMs, inLine)
  local held, mark = call('GET', lease), ''
  if held and held ~= '> ' .. waiter then
    if not holds(held, owner) then
      local remaining = call('PTTL', lease)
      if waiter ~= '' then
        enqueue(waiters, waiter, forMs)
        if remaining > 0 and string.find(held, '^[^>].* %d+$') then attempt('SET', lease, held .. ' w', 'KEEPTTL') end
      end
      return 0, remaining
    end
    local generation = string.match(held, '^%d+', #owner + 2)
    if tonumber(generation) > tonumber(floor) then
      call('PEXPIRE', lease, ttl)
      return 1, generation
    end
    mark = markOf(held)
  elseif held or inLine == '1' then
    call('LREM', waiters, 0, waiter)
    if call('EXISTS', waiters) == 1 then mark = ' w' end
  end
  local generation, refusal = grant(lease, counter, owner, ttl, tonumber(floor), mark)
  if not generation then return -1, refusal end
  return 1, generation
end

-- Renews count leases from KEYS[k] on, of the owners from ARGV[a] on. Answers a list of 1 or 0. Never creates a key.
local function renew(k, a, count, ttl)
  local answers = {}
  for i = 0, count - 1 do
    local held = attempt('GET', KEYS[k + i])
    if type(held) == 'string' and holds(held, ARGV[a + i]) then
      answers[i + 1] = call('PEXPIRE', KEYS[k + i], ttl)
    else
      answers[i + 1] = 0
    end
  end
  return answers
end

-- Answers 0 not the owner; 1 freed or kept.
local function release(lease, counter, waiters, owner, holdMs)
  local held = call('GET', lease)
  if not holds(held, owner) then return 0 end
  local waited = markOf(held) ~= ''
  if holdMs ~= '0' then
    call('PEXPIRE', lease, holdMs)
    if waited then wake(lease, counter, '-', holdMs) end
  elseif not (waited and serveWaiter(lease, counter, waiters)) then
    call('DEL', lease)
  end
  return 1
end

-- A release that names who is next. Answers 0 not the owner; 1 freed; 2, generation handed over; 3, ms another process goes
-- first.
local function handOver(lease, counter, waiters, owner, successor, ttl, waiter, forMs, mayOvertake)
  local held = call('GET', lease)
  if not holds(held, owner) then return 0 end
  local mark = markOf(held)
  if mark ~= '' and mayOvertake == '0' then
    if serveWaiter(lease, counter, waiters, waiter) then
      enqueue(waiters, waiter, forMs)
      return 3, RESERVED_MS
    end
    mark = ''
  end
  local generation = grant(lease, counter, successor, ttl, 0, mark)
  if generation then return 2, generation end
  call('DEL', lease)
  return 1
end

-- The waiter gives up; what was kept for it goes to the next.
local function withdraw(lease, counter, waiters, waiter)
  call('LREM', waiters, 0, waiter)
  if call('GET', lease) == '> ' .. waiter and not serveWaiter(lease, counter, waiters) then call('DEL', lease) end
  return 1
end

-- Each step takes the lease, the counter and the waiters of one key, and so many arguments.
local steps = { acquire = acquire, release = release, handOver = handOver, withdraw = withdraw }
local arguments = { acquire = 6, release = 2, handOver = 6, withdraw = 1 }

-- Two answers for each step: its outcome, and what goes with it.
local answers, n, k, a = {}, 0, 1, 1
while ARGV[a] do
  local name, outcome, value = ARGV[a]
  local count = arguments[name]
  if count then
    local done
    done, outcome, value = pcall(steps[name], KEYS[k], KEYS[k + 1], KEYS[k + 2], unpack(ARGV, a + 1, a + count))
    if not done then outcome, value = -1, type(outcome) == 'table' and outcome.err or tostring(outcome) end
    k, a = k + 3, a + 1 + count
  elseif name == 'renew' then
    count = tonumber(ARGV[a + 1])
    outcome, value = 1, renew(k, a + 3, count, ARGV[a + 2])
    k, a = k + count, a + 3 + count
  else
    return redis.error_reply('FENCING unknown step')
  end
  answers[n + 1], answers[n + 2] = outcome, value or 0
  n = n + 2
end
return answers
`;

/**
 * The same for a cluster: hints go by sharded pub/sub, in the slot of the bucket. Its failure (the slot is on the move) must not fail
 * the step that it tells of.
 */
export const CLUSTER_STEPS = STEPS.replace("call('PUBLISH',", "attempt('SPUBLISH',");

/** The value of a lease and its remaining ms, from the master whatever `scaleReads` says, since a script may write. */
export const READ = `return { redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]) }`;
