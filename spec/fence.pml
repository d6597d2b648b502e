/* fence.pml - safety: whatever the lease store forgets and the network delays, a stale writer cannot win.
 *
 * One key. A lease store (Redis) hands out grants, a fence row (PostgreSQL) decides whose write counts, and worker processes
 * make calls one after the other; each call is a grant of its own. Every step of the store and every statement of the
 * database is atomic (d_step); everything between two steps may be interleaved with anything, and a lease may expire at any
 * moment. Time is left out: no step depends on a clock being right.
 *
 * Bounds      PROCS processes, CALLS calls each, WRITES writes in a call, LOSSES losses of the store, FAULTS messages that are
 *             lost, late or doubled, FENCE_AT: the fence is that far ahead of the counter at the start
 * Options     -DNO_EXPIRY      leases do not expire by themselves
 *             -DCOUNTER_LOSS   a loss may also hit the counter alone (eviction)
 *             -DSTALE_COPY     a failover may bring back an older lease and counter
 *             -DLAZY           activate: 'write' - the fence learns of the grant at the first write
 *             -DREAD_IN_TX     what is written depends only on what was read in its own transaction
 *             -DRELAXED        activationDurability: 'relaxed' - a database crash may take the last activation back
 * Checks      I1 I2 I3 I5 by name (see below), I6 as the two that follow; -DNO_I1, -DNO_I2, -DNO_I3 leave one out
 *             -DCHECK_DRIFT    I6: a late or doubled request never changes the generation of a lease that is in use
 *             -DCHECK_LEAK     I6: after a release was executed its owner holds nothing, whatever came late before
 *
 * Wrong variants, which the checker must refute:
 *             -DNO_FENCE           no guard
 *             -DGUARD_NO_LOCK      the guard does not lock the row to the end of the transaction
 *             -DGUARD_NOT_EQUAL    the guard is content with any fence that is not above the grant
 *             -DNO_ACTIVATION      the fence is raised by the first write only, inside its transaction
 *             -DACT_NO_OWNER       an activation accepts an equal generation of another owner
 *             -DACT_ANY            an activation overwrites the fence, newer or not
 *             -DACT_NO_WAIT        an activation does not wait for guarded transactions
 *             -DROW_DELETED        the fence row is deleted when the lease is released
 *             -DRELEASE_BY_KEY     a release frees the key whoever holds it
 *             -DRELEASE_BY_GENERATION   a release compares the generation only
 *             -DRELEASE_GENERATION_TOO  a release compares owner and generation
 *             -DRENEW_BY_KEY       a renewal prolongs the lease whoever holds it
 *             -DRENEW_CREATES      a renewal takes the key again when it is gone
 *             -DOWNER_PER_PROCESS  one owner value for all calls of a process
 *             -DOWNER_SHARED       one owner value for all processes
 *             -DBUMP_ON_RETRY      acquiring again with a floor always issues a new generation
 *             -DHANDOVER_KEEPS_GRANT    the next call of the process works on under the generation of the one before
 *             -DGO_ON_AFTER_UNKNOWN     after a commit without an answer the call writes again under the same grant
 *             -DHEAL_IN_THE_BODY        a refused write takes a new generation and writes what it had read before
 *
 * No goto leads from one atomic step into another: that would silently make one step of the two.
 */
#ifndef PROCS
#define PROCS 2
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef WRITES
#define WRITES 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef FENCE_AT
#define FENCE_AT 0
#endif

/* -------------------------------------------------------------------------------------------------- invariants, by name
 * Never set: assert(I1) is how a violation of I1 gets its name into the checker's report. */
bit I1, I2, I3, I5, DRIFT, LEAK;
#define DEMAND(what, name) if :: (what) :: else -> assert(name) fi

/* ------------------------------------------------------------------------------------------------------- the lease store */
byte Lo, Lg;		/* the lease: its owner (0: free) and generation */
byte C;			/* last generation issued. The clock term of the formula is left out: a clock that stands still */
byte Lcall;		/* ghost: the call that the lease was granted to */
#ifdef STALE_COPY
byte So, Sg, Sc, Scall;	/* what the replica has */
#endif

/* ---------------------------------------------------------------------------------------------------------- the database */
byte Fo = (FENCE_AT>0 -> 250 : 0), Fg = FENCE_AT;	/* the fence row */
byte shared;		/* who holds a share lock on it: bit i process i, bit PROCS a transaction whose client is gone */
#ifdef RELAXED
byte Po, Pg;		/* the fence before an activation that is not on disk yet */
bit unflushed;
#endif
byte To, Tg, Tcall;	/* a transaction whose client is gone: its COMMIT may still be on its way (0: none) */

/* ----------------------------------------------------------------------------------------------------------- the network */
byte late, l1, l2;	/* one late (or doubled) request: 1 acquire, 2 release, 3 activate; with its arguments */
byte losses, faults;

/* ---------------------------------------------------------------------------------------------------------------- ghosts */
byte cg, ccall;		/* generation and call of the last committed write */
byte ag, ao;		/* the newest activation that ever took effect */
byte clean;		/* bit i: no other transaction has committed since process i's READ; bit PROCS: the orphan's */

#define BIT(i) (1<<(i))
#define MAX(a,b) ((a)>(b)->(a):(b))
#define CALL(id,k) (1+(id)*CALLS+(k))
#if defined(OWNER_SHARED)
#define OWNER(call) 1
#elif defined(OWNER_PER_PROCESS)
#define OWNER(call) (1+((call)-1)/CALLS)
#else
#define OWNER(call) (call)
#endif

inline issue(call, floor) { C = MAX(C,floor)+1; assert(C<200); Lo = OWNER(call); Lg = C; Lcall = call }
inline freeKey() { Lo = 0; Lg = 0; Lcall = 0 }

/* acquire(owner, floor): a free key is granted; its own owner gets the same grant again, or a newer one above the floor. */
#define MINE(call) (Lo==0 || Lo==OWNER(call))
#ifdef BUMP_ON_RETRY
#define BUMP(call,floor) (Lo==OWNER(call) && (floor)>0)
#else
#define BUMP(call,floor) (Lo==OWNER(call) && Lg<=(floor))
#endif
inline acquire(call, floor) {
	if
	:: Lo==0 || BUMP(call,floor) -> issue(call,floor)
	:: else -> skip			/* a retry, or somebody else's: nothing changes */
	fi
}

/* release(owner): frees the key, or hands it to the next call of the same process (0: there is none) */
#if defined(RELEASE_BY_KEY)
#define RELEASES(call,gen) (Lo!=0)
#elif defined(RELEASE_BY_GENERATION)
#define RELEASES(call,gen) (Lo!=0 && Lg==(gen))
#elif defined(RELEASE_GENERATION_TOO)
#define RELEASES(call,gen) (Lo==OWNER(call) && Lg==(gen))
#else
#define RELEASES(call,gen) (Lo==OWNER(call))
#endif
inline release(call, gen, next) {
	if
	:: RELEASES(call,gen) -> DEMAND(Lcall==(call), I5);
		if :: (next)==0 -> freeKey() :: else -> issue(next,0) fi;
#ifdef ROW_DELETED
		Fo = 0; Fg = 0
#endif
	:: else -> skip
	fi
}

/* renew(owner): lets the ttl run anew. There is no time here, so what is left of it is whom it does that for. */
#if defined(RENEW_BY_KEY)
#define RENEWS(call) (Lo!=0)
#elif defined(RENEW_CREATES)
#define RENEWS(call) (Lo==0 || Lo==OWNER(call))
#else
#define RENEWS(call) (Lo==OWNER(call))
#endif
inline renew(call, gen) {
	DEMAND(Lcall==(call), I5);
	Lo = OWNER(call); Lg = (Lg==0 -> gen : Lg)
}

/* activate(generation, owner): raises the fence, is content where it names exactly this grant, and waits for share locks. */
#if defined(ACT_NO_OWNER)
#define ACCEPTS(o,g) (Fg<=(g))
#elif defined(ACT_ANY)
#define ACCEPTS(o,g) (true)
#else
#define ACCEPTS(o,g) (Fg<(g) || (Fg==(g) && Fo==(o)))
#endif
#ifdef ACT_NO_WAIT
#define UNLOCKED true
#else
#define UNLOCKED (shared==0)
#endif
inline raise(o, g) {
#ifdef RELAXED
	if :: Fg!=(g) || Fo!=(o) -> Po = Fo; Pg = Fg; unflushed = 1 :: else -> skip fi;
#endif
	Fo = o; Fg = g;
	if :: (g)>=ag -> ag = g; ao = o :: else -> skip fi
}

#ifdef GUARD_NOT_EQUAL
#define GUARD(o,g) (Fg<=(g))
#else
#define GUARD(o,g) (Fg==(g) && Fo==(o))
#endif

/* The invariants are looked at where a write becomes visible. `bit` is whose READ it stands on. */
inline commit(call, o, g, who) {
#ifndef NO_I1
	DEMAND((g)>cg || ((g)==cg && (call)==ccall), I1);
#endif
#ifndef NO_I2
	DEMAND((g)>ag || ((g)==ag && (o)==ao), I2);
#endif
#ifndef NO_I3
	DEMAND(clean & BIT(who), I3);
#endif
	cg = g; ccall = call;
	clean = clean & BIT(who);
#ifdef RELAXED
	unflushed = 0; Po = 0; Pg = 0		/* a commit takes everything before it to disk */
#endif
}

active proctype Environment() {
	byte k;
end:	do
#ifndef NO_EXPIRY
	:: d_step { Lo!=0 -> freeKey() }				/* a lease expires, at any time */
#endif
	:: atomic { losses<LOSSES && C>0 -> losses++;			/* the store is flushed, or restored: C is any earlier value */
		do :: k < C-1 -> k++ :: break od;
		d_step { C = k; k = 0; freeKey() } }
#ifdef COUNTER_LOSS
	:: atomic { losses<LOSSES && C>0 && Lo!=0 -> losses++;
		do :: k < C-1 -> k++ :: break od;
		d_step { C = k; k = 0 } }
#endif
#ifdef STALE_COPY
	:: d_step { losses<LOSSES && (So!=Lo || Sg!=Lg || Sc!=C) -> So = Lo; Sg = Lg; Sc = C; Scall = Lcall }
	:: d_step { losses<LOSSES && (So!=Lo || Sg!=Lg || Sc!=C) -> losses++; Lo = So; Lg = Sg; C = Sc; Lcall = Scall }
#endif
#ifdef RELAXED
	:: d_step { unflushed && shared==0 -> Fo = Po; Fg = Pg; Po = 0; Pg = 0; unflushed = 0 }	/* a crash of the database */
#endif
	/* the late request arrives, or never does */
	:: d_step { late==1 -> acquire(l1,l2); late = 0; l1 = 0; l2 = 0 }
	:: d_step { late==2 -> release(l1,250,l2); late = 0; l1 = 0; l2 = 0 }
	:: d_step { late==3 && UNLOCKED && ACCEPTS(l1,l2) -> raise(l1,l2); late = 0; l1 = 0; l2 = 0 }
	:: d_step { late!=0 -> late = 0; l1 = 0; l2 = 0 }
	/* the backend of a client that is gone: it commits, or the server ends it */
	:: d_step { To!=0 -> commit(Tcall,To,Tg,PROCS); clean = 0; shared = shared & ~BIT(PROCS); To = 0; Tg = 0; Tcall = 0 }
	:: d_step { To!=0 -> clean = clean & ~BIT(PROCS); shared = shared & ~BIT(PROCS); To = 0; Tg = 0; Tcall = 0 }
	od
}

#define MAY_LOSE (faults<FAULTS)
#define MAY_BE_LATE (faults<FAULTS && late==0)
#define SEND_LATE(what,a,b) faults++; late = what; l1 = a; l2 = b

proctype Process(byte id) {
	byte call, own, gen, floor, k, w;
NEXT:	if	/* a new call: a new owner */
	:: d_step { k<CALLS -> call = CALL(id,k); own = OWNER(call); k++; gen = 0; floor = 0; w = 0 }
	:: d_step { k==CALLS -> call = 0; own = 0; gen = 0; floor = 0; w = 0; clean = clean & ~BIT(id) } -> goto DONE
	fi;

ACQ:	if	/* busy: wait */
	:: d_step { MINE(call) -> acquire(call,floor); gen = Lg }
	:: d_step { MINE(call) && MAY_LOSE -> faults++; acquire(call,floor) } -> goto ACQ2
	:: d_step { MAY_BE_LATE -> SEND_LATE(1,call,floor) } -> goto ACQ2
	fi;
#if defined(LAZY) || defined(NO_ACTIVATION)
	goto WORK;
#else
	goto ACT;
#endif
ACQ2:	if :: goto ACQ :: goto NEXT fi;			/* no answer: ask again as the same owner, or give up */

ACT:	if
	:: d_step { UNLOCKED && ACCEPTS(own,gen) -> raise(own,gen) }
	:: d_step { UNLOCKED && ACCEPTS(own,gen) && MAY_LOSE -> faults++; raise(own,gen) } -> goto ACT2
	:: d_step { MAY_BE_LATE -> SEND_LATE(3,own,gen) } -> goto ACT2
	:: d_step { !ACCEPTS(own,gen) -> floor = Fg } -> goto HEAL
	fi;
#if defined(LAZY)
	goto TX;
#elif defined(HEAL_IN_THE_BODY)
	if :: d_step { w==9 -> w = 0 } -> goto TX :: w!=9 fi;
	goto WORK;
#else
	goto WORK;
#endif
ACT2:	if :: goto ACT :: goto NEXT fi;

HEAL:	/* the fence is ahead: the store issues a generation above it to the same owner; what is left of an old READ is dropped */
#ifdef LAZY
	goto REL;
#endif
	if
	:: d_step { MINE(call) -> acquire(call,floor); gen = Lg }
	:: d_step { MINE(call) && MAY_LOSE -> faults++; acquire(call,floor) } -> goto HEAL2
	:: d_step { MAY_BE_LATE -> SEND_LATE(1,call,floor) } -> goto HEAL2
	:: !MINE(call) -> goto NEXT			/* somebody else has it now */
	fi;
	goto ACT;
HEAL2:	if :: goto HEAL :: goto NEXT fi;

WORK:	/* the body reads what its write will stand on */
	if
	:: d_step { true -> clean = clean | BIT(id) }
	:: d_step { RENEWS(call) -> renew(call,gen) } -> goto WORK
	fi;
#ifdef LAZY
	goto ACT;
#endif
TX:	/* a transaction; its first statement is the guard */
#if defined(NO_FENCE)
	skip;
#elif defined(NO_ACTIVATION)
	if
	:: d_step { shared==0 && ACCEPTS(own,gen) -> raise(own,gen); shared = shared | BIT(id) }
	:: d_step { !ACCEPTS(own,gen) -> skip } -> goto REL
	fi;
#elif defined(GUARD_NO_LOCK)
	if :: d_step { GUARD(own,gen) -> skip } :: !GUARD(own,gen) -> goto STALE fi;
#else
	if
	:: d_step { GUARD(own,gen) -> shared = shared | BIT(id) }
	:: !GUARD(own,gen) -> goto STALE
	fi;
#endif
#ifdef READ_IN_TX
	if :: d_step { true -> clean = clean | BIT(id) } fi;
#endif
	if
	:: d_step { true ->				/* COMMIT, confirmed */
		commit(call,own,gen,id);
		shared = shared & ~BIT(id);
		w++ }
	:: d_step { true -> shared = shared & ~BIT(id) };	/* rolled back: the body threw, the connection broke, the idle limit */
		if :: goto WORK :: goto NEXT fi
	:: d_step { MAY_LOSE && To==0 -> faults++;	/* COMMIT sent, no answer: the transaction lives on without its client */
		To = own; Tg = gen; Tcall = call;
		shared = (shared & ~BIT(id)) | (shared & BIT(id) -> BIT(PROCS) : 0);
		clean = (clean & ~BIT(PROCS)) | (clean & BIT(id) -> BIT(PROCS) : 0) };
#ifdef GO_ON_AFTER_UNKNOWN
		goto WORK
#else
		goto REL				/* unknown: nothing more is written under this grant */
#endif
	fi;
	if
	:: w<WRITES -> goto TX				/* the next write: it knows its own */
	:: w<WRITES -> goto WORK			/* or reads again */
	:: true -> goto REL
	:: true -> goto NEXT				/* crashed: never releases */
	fi;

STALE:	/* refused: the body never ran */
#ifdef HEAL_IN_THE_BODY
	if :: d_step { true -> floor = Fg; w = 9 } fi;
	goto HEAL;
#endif
REL:
#ifdef CHECK_DRIFT
	DEMAND(Lo!=own || Lg==gen, DRIFT);
#endif
	if
	:: d_step { true -> release(call,gen,0);
#ifdef CHECK_LEAK
		DEMAND(Lo!=own, LEAK);
#endif
		}
	:: d_step { MAY_BE_LATE -> SEND_LATE(2,call,0) }
#ifdef HANDOVER_KEEPS_GRANT
	:: d_step { k<CALLS && Lo==own -> call = CALL(id,k); Lcall = call; k++; w = 0 } -> goto WORK
#else	/* hand-over: the next call of this process, with an owner of its own */
	:: d_step { k<CALLS && RELEASES(call,gen) -> release(call,gen,CALL(id,k));
		call = CALL(id,k); own = OWNER(call); gen = Lg; floor = 0; k++; w = 0 } -> goto ACT
	:: d_step { k<CALLS && MAY_LOSE -> faults++; release(call,gen,CALL(id,k)) }	/* no answer: the next call asks itself */
	:: d_step { k<CALLS && MAY_BE_LATE -> SEND_LATE(2,call,CALL(id,k)) }
#endif
	fi;
	goto NEXT;
DONE:	skip
}

init { atomic { byte i; for (i : 0 .. PROCS-1) { run Process(i) }; i = 0 } }
