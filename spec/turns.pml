/* turns.pml - liveness: every waiter gets its turn, even if any one message is lost (I9).
 *
 * PROCS processes want one key for ever: in each of them callers queue endlessly, and only the head of a queue talks to the
 * store. A release may name the next caller of the same process; the store then hands the key over in the same step, unless
 * another process waits: then at most TURN hand-overs in a row stay inside, and that one is served. It is woken, and the key is
 * kept for it until it comes or a moment has passed. Owners and generations are left out; fence.pml has them. Checked under weak fairness.
 *
 * Bounds      FAULTS messages lost (a wake-up, a release, a withdrawal, the answer to a hand-over) or moments passed too early,
 *             GIVEUPS callers that give up (timeout, abort), TURN hand-overs that may pass waiting processes over
 * Options     -DDIE            the last process may die for ever, while it waits or holds the key
 *
 * Wrong variants, which the checker must refute:
 *             -DHANDOVER_FIRST      the next caller of the same process always goes before other processes
 *             -DNOT_KEPT            the waiter is woken, but the key is not kept for it
 *             -DBY_NAME             waiters are served in the order of their names (needs three processes)
 *             -DWAKE_UP_ONLY        a waiter looks again only when it is woken
 *             -DKEPT_FOR_EVER       the key is kept until the woken process comes, however long that takes
 *             -DNO_TTL              a lease does not expire
 */
#ifndef PROCS
#define PROCS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef GIVEUPS
#define GIVEUPS 1
#endif
#ifndef TURN
#define TURN 1
#endif
#define NOBODY 255

byte held = NOBODY;		/* who holds the lease at the store */
byte kept = NOBODY;		/* whom the free key is kept for */
chan line = [PROCS] of { byte };/* the processes that wait, first come first */
bit woken[PROCS];		/* a wake-up has arrived */
bit works[PROCS];		/* the process knows that it holds the key */
bit dead[PROCS];
byte turn = NOBODY;		/* ghost: whose turn it was last */
byte faults, giveups;

inline leaveLine(who) { if :: line??[eval(who)] -> line??eval(who) :: else -> skip fi }
inline enterLine(who) {
	if
	:: line??[eval(who)] -> skip
#ifdef BY_NAME
	:: else -> line!!who			/* sorted */
#else
	:: else -> line!who
#endif
	fi
}

/* A freed key goes to the first process in the line that is not `except`, else it is free. `w` is a scratch variable. */
inline serve(except, w) {
	held = NOBODY;
	if :: line?[eval(except)] -> line?eval(except) :: else -> skip fi;
	if
	:: nempty(line) -> line?w;
#ifndef NOT_KEPT
		kept = w;
#endif
		woken[w] = 1; w = 0
	:: else -> kept = NOBODY
	fi
}

active proctype Store() {
	byte w;
end:	do
#ifndef NO_TTL
	:: d_step { held!=NOBODY && !works[held] -> held = NOBODY }			/* nobody renews it */
#endif
#ifndef KEPT_FOR_EVER
	:: d_step { kept!=NOBODY && dead[kept] -> kept = NOBODY }
	:: d_step { kept!=NOBODY && faults<FAULTS -> faults++; kept = NOBODY }		/* it came too late */
#endif
	:: d_step { faults<FAULTS && woken[0] -> faults++; woken[0] = 0 }		/* the wake-up is lost */
	:: d_step { faults<FAULTS && woken[PROCS-1] -> faults++; woken[PROCS-1] = 0 }
	od
}

#define CAN_HAVE(id) ((held==NOBODY && (kept==NOBODY || kept==id)) || (held==id))
#define OTHERS_WAIT(id) (len(line)>1 || (len(line)==1 && !line?[eval(id)]))
#ifdef DIE
#define MAY_DIE :: d_step { id==PROCS-1 -> dead[id] = 1; works[id] = 0 } -> goto DEAD
#else
#define MAY_DIE
#endif

proctype Process(byte id) {
	byte w, handOvers;
ASK:	if	/* acquire, by the head of this process's queue */
	:: d_step { CAN_HAVE(id) -> held = id; kept = NOBODY; leaveLine(id); woken[id] = 0; works[id] = 1; handOvers = 0 } -> goto WORK
	:: d_step { !CAN_HAVE(id) -> enterLine(id) }
	fi;
PAUSE:	if
#ifndef WAKE_UP_ONLY
	:: true -> goto ASK			/* the pause is over: it is bounded by the ttl */
#endif
	:: d_step { woken[id] -> woken[id] = 0 } -> goto ASK
	:: d_step { giveups<GIVEUPS -> giveups++;	/* the caller gives up and withdraws; the next one asks */
		if
		:: faults<FAULTS -> faults++	/* the withdrawal is lost */
		:: true -> leaveLine(id); if :: kept==id -> serve(id,w) :: else -> skip fi
		fi } -> goto ASK
	MAY_DIE
	fi;
WORK:	if
	:: d_step { true -> turn = id }
	MAY_DIE
	fi;
	if	/* release, naming the next caller of this process */
	:: d_step { held==id ->
#ifdef HANDOVER_FIRST
		skip
#else
		if
		:: !OTHERS_WAIT(id) -> skip	/* handed over: the next caller works */
		:: OTHERS_WAIT(id) && handOvers<TURN -> handOvers++
		:: OTHERS_WAIT(id) && handOvers>=TURN -> serve(id,w); works[id] = 0; enterLine(id)
		fi
#endif
		};
		if :: works[id] -> goto WORK :: !works[id] -> goto PAUSE fi
	:: d_step { faults<FAULTS -> faults++; works[id] = 0 } -> goto ASK	/* it never arrives: the next caller asks itself */
	:: d_step { held!=id -> works[id] = 0 } -> goto ASK		/* it was lost meanwhile */
	fi;
DEAD:	skip
}

init { atomic { byte i; for (i : 0 .. PROCS-1) { run Process(i) }; i = 0 } }

ltl nobodyStarves { []<> (turn==0) && (<> dead[1] || []<> (turn==1)) && (<> dead[PROCS-1] || []<> (turn==PROCS-1)) }
