/**
 * All Lua of the package: one script that takes any number of steps of the lease store's contract (see `core/lease-store.ts`),
 * so that what a process asks for in one turn of its event loop is one request. A script is atomic, so each step is.
 *
 * Per bucket `b` of keys (its hash tag keeps them in one slot of a cluster):
 *   prefix:{b}:lease:<key>     "<owner> <generation>", or "> <waiter>" while a freed key is kept for a woken waiter; expires
 *   prefix:{b}:waiters:<key>   list of the processes that wait for the key, first come first; expires
 *   prefix:{b}:generation      the last generation issued for any key of the bucket
 *   prefix:{b}:wake            channel: "<waiter or -> <reserved ms> <key>"
 *
 * The server's clock in microseconds is below 2^53 until the year 2255, so the doubles of Lua are exact; `%d` writes them
 * without an exponent. A step that fails (a full server, a key of another type that somebody else made) fails alone: it answers
 * {-1, why not}, and its neighbours in the request are done.
 */
export const STEPS = `
-- The next generation of a bucket: max(last issued + 1, clock in microseconds, floor + 1); nil past 2^53 - 1.
local function issue(counter, floor)
  local time = redis.call('TIME')
  local last = tonumber(redis.call('GET', counter) or '0') or 0
  local generation = math.max(last + 1, time[1] * 1000000 + time[2], floor + 1)
  if generation > 9007199254740991 then return nil, 'exhausted' end
  local text = string.format('%d', generation)
  local done = redis.pcall('SET', counter, text)
  if done.err then return nil, done.err end
  return text
end

-- Grants the lease to owner under a new generation. Answers the generation, or nil and why not.
local function grant(lease, counter, owner, ttl, floor)
  local generation, refusal = issue(counter, floor)
  if not generation then return nil, refusal end
  local done = redis.pcall('SET', lease, owner .. ' ' .. generation, 'PX', ttl)
  if done.err then return nil, done.err end
  return generation
end

local function holds(held, owner)
  return held and string.sub(held, 1, #owner + 1) == owner .. ' '
end

local function enqueue(waiters, waiter, forMs)
  if not redis.call('LPOS', waiters, waiter) then redis.pcall('RPUSH', waiters, waiter) end
  if redis.call('PTTL', waiters) < tonumber(forMs) then redis.call('PEXPIRE', waiters, forMs) end
end

-- Frees the lease for the first process that waits for it and is not except: keeps it for that one, and wakes it.
local function serveWaiter(lease, waiters, channel, except, reservedMs, key)
  local waiter = redis.call('LPOP', waiters)
  if waiter == except then waiter = redis.call('LPOP', waiters) end
  if not waiter then return false end
  if redis.pcall('SET', lease, '> ' .. waiter, 'PX', reservedMs).err then redis.call('DEL', lease) end
  redis.call('PUBLISH', channel, waiter .. ' ' .. reservedMs .. ' ' .. key)
  return true
end

-- Answers {1, generation}; {0, remaining ms} busy (-1: the key has no expiry, so something else made it).
local function acquire(lease, counter, waiters, owner, ttl, floor, waiter, forMs)
  local held = redis.call('GET', lease)
  if holds(held, owner) then
    local generation = string.sub(held, #owner + 2)
    if tonumber(generation) > tonumber(floor) then
      redis.call('PEXPIRE', lease, ttl)
      return {1, generation}
    end
  elseif held and not (waiter ~= '' and held == '> ' .. waiter) then
    if waiter ~= '' then enqueue(waiters, waiter, forMs) end
    return {0, redis.call('PTTL', lease)}
  end
  local generation, refusal = grant(lease, counter, owner, ttl, tonumber(floor))
  if not generation then return {-1, refusal} end
  if waiter ~= '' then redis.call('LREM', waiters, 0, waiter) end
  return {1, generation}
end

-- Renews count leases from KEYS[k] on, of the owners from ARGV[a] on. Answers 1 or 0 for each. Never creates a key.
local function renew(k, a, count, ttl)
  local answers = {}
  for i = 0, count - 1 do
    local held = redis.pcall('GET', KEYS[k + i])
    if type(held) == 'string' and holds(held, ARGV[a + i]) then
      answers[i + 1] = redis.call('PEXPIRE', KEYS[k + i], ttl)
    else
      answers[i + 1] = 0
    end
  end
  return answers
end

-- Answers {0} not the owner; {1} freed or kept; {2, generation} handed over; {3, ms} another process goes first.
local function release(lease, counter, waiters, owner, holdMs, channel, key, reservedMs, successor, ttl, waiter, forMs, mayOvertake)
  if not holds(redis.call('GET', lease), owner) then return {0} end
  if tonumber(holdMs) > 0 then
    redis.call('PEXPIRE', lease, holdMs)
    if redis.call('EXISTS', waiters) == 1 then redis.call('PUBLISH', channel, '- ' .. holdMs .. ' ' .. key) end
    return {1}
  end
  if mayOvertake == '0' and serveWaiter(lease, waiters, channel, waiter, reservedMs, key) then
    if successor == '' then return {1} end
    enqueue(waiters, waiter, forMs)
    return {3, reservedMs}
  end
  if successor ~= '' then
    local generation = grant(lease, counter, successor, ttl, 0)
    if generation then return {2, generation} end
  end
  redis.call('DEL', lease)
  return {1}
end

-- The waiter gives up; what was kept for it goes to the next.
local function withdraw(lease, waiters, waiter, channel, key, reservedMs)
  redis.call('LREM', waiters, 0, waiter)
  if redis.call('GET', lease) == '> ' .. waiter then
    if not serveWaiter(lease, waiters, channel, waiter, reservedMs, key) then redis.call('DEL', lease) end
  end
  return {1}
end

local function alone(step, ...)
  local done, answer = pcall(step, ...)
  if done then return answer end
  return {-1, type(answer) == 'table' and answer.err or tostring(answer)}
end

local answers, k, a = {}, 1, 1
while ARGV[a] do
  local step, answer = ARGV[a]
  if step == 'acquire' then
    answer = alone(acquire, KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5])
    k, a = k + 3, a + 6
  elseif step == 'renew' then
    local count = tonumber(ARGV[a + 1])
    answer = renew(k, a + 3, count, ARGV[a + 2])
    k, a = k + count, a + 3 + count
  elseif step == 'release' then
    answer = alone(release, KEYS[k], KEYS[k + 1], KEYS[k + 2], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5],
      ARGV[a + 6], ARGV[a + 7], ARGV[a + 8], ARGV[a + 9], ARGV[a + 10])
    k, a = k + 3, a + 11
  elseif step == 'withdraw' then
    answer = alone(withdraw, KEYS[k], KEYS[k + 1], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4])
    k, a = k + 2, a + 5
  else
    return redis.error_reply('FENCING unknown step')
  end
  answers[#answers + 1] = answer
end
return answers
`;
