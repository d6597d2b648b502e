/* heal.pml - liveness: every call gets to its commit, without hands (I7, I8).
 *
 * After a bounded number of expiries of live leases (EXPIRIES), losses of the store (LOSSES) and lost or late messages
 * (FAULTS), every process that is not dead commits once. The fence starts FENCE_AT ahead of a counter that starts at 0, as
 * after a total loss of the store. Checked under weak fairness: what is possible for ever happens some day (pan -a -f).
 *
 * Options     -DDIE               process 0 may die for ever at any step, inside its transaction too
 *             -DFORMER            a former owner, its lease gone, has a pool of two connections full of guarded transactions
 *             -DMOST_REJECTIONS=n no grant is rejected by the fence more than n times in a row
 *
 * Wrong variants, which the checker must refute:
 *             -DRETRY_WITHOUT_FLOOR  after a rejection: acquire again without saying what the fence has
 *             -DCOUNT_UP             the floor is ignored: the counter goes up by one for each rejection
 *             -DTTL_DROPPED          acquiring again leaves the key without a time to live
 *             -DNO_IDLE_LIMIT        the server lets a dead process's transaction stay open
 *             -DPAST_DEADLINE        the former owner goes on opening transactions after its deadline
 */
#ifndef PROCS
#define PROCS 2
#endif
#ifndef EXPIRIES
#define EXPIRIES 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef FENCE_AT
#define FENCE_AT 3
#endif
#define FORMER_OWNER 250
#define OWNER(id,k) (1+(id)+PROCS*(k))		/* one for each call */
#define BIT(i) (1<<(i))
#define MAX(a,b) ((a)>(b)->(a):(b))
#ifdef COUNT_UP
#define FLOOR(x) 0
#else
#define FLOOR(x) (x)
#endif

bit REJECTIONS;				/* never set: it names a violation */
byte Lo, Lg, C;				/* the lease, and the last generation issued */
bit ttl;				/* the lease expires */
byte Fo = FORMER_OWNER, Fg = FENCE_AT;	/* the fence */
byte shared;				/* share locks: bit i process i, bits 6 and 7 the former owner */
byte uses[PROCS];			/* the owner a process works as now; 0: none */
byte late, l1, l2;			/* one late request: 1 acquire, 2 release, 3 activate */
byte expiries, losses, faults;
bit done[PROCS], dead[PROCS];

inline issue(o, floor) { C = MAX(C,FLOOR(floor))+1; assert(C<200); Lo = o; Lg = C; ttl = 1 }
inline freeKey() { Lo = 0; Lg = 0; ttl = 0 }
#define MINE (Lo==0 || Lo==own)
inline acquire(o, floor) {
	if
	:: Lo==0 -> issue(o,floor)
#ifndef RETRY_WITHOUT_FLOOR
	:: Lo==(o) && Lg<=(floor) -> issue(o,floor);
#ifdef TTL_DROPPED
		ttl = 0
#endif
#endif
	:: else -> skip
	fi
}
inline release(o) { if :: Lo==(o) -> freeKey() :: else -> skip fi }
#define ACCEPTS(o,g) (Fg<(g) || (Fg==(g) && Fo==(o)))

active proctype Environment() {
	byte k;
end:	do
	:: d_step { Lo!=0 && ttl && expiries<EXPIRIES -> expiries++; freeKey() }
	:: atomic { losses<LOSSES && C>0 -> losses++;
		do :: k<C-1 -> k++ :: break od;
		d_step { C = k; k = 0; freeKey() } }
	od
}

active proctype Network() {
end:	do
	:: d_step { late==1 -> acquire(l1,l2); late = 0; l1 = 0; l2 = 0 }
	:: d_step { late==2 -> release(l1); late = 0; l1 = 0; l2 = 0 }
	:: d_step { late==3 && shared==0 && ACCEPTS(l1,l2) -> Fo = l1; Fg = l2; late = 0; l1 = 0; l2 = 0 }
	:: d_step { late!=0 -> late = 0; l1 = 0; l2 = 0 }
	od
}

#define IS_USED(o) (uses[0]==(o) || uses[1]==(o) || uses[PROCS-1]==(o))
active proctype Expiry() {		/* a lease that nobody renews expires */
end:	do
	:: d_step { Lo!=0 && ttl && !IS_USED(Lo) -> freeKey() }
	od
}

#ifndef NO_IDLE_LIMIT
active proctype IdleLimit() {		/* a transaction that nobody continues is ended by the server */
end:	do
	:: d_step { dead[0] && shared&BIT(0) -> shared = shared & ~BIT(0) }
	od
}
#endif

#ifdef FORMER
bit deadline;				/* the former owner's lease is over, as it knows by its own clock */
active proctype Clock() { d_step { true -> deadline = 1 } }
active [2] proctype Former() {
	byte connection = 6 + (_pid & 1);	/* the two have neighbouring pids */
end:	do
#ifdef PAST_DEADLINE
	:: d_step { Fo==FORMER_OWNER -> shared = shared|BIT(connection) } -> shared = shared & ~BIT(connection)
#else
	:: d_step { Fo==FORMER_OWNER && !deadline -> shared = shared|BIT(connection) } -> shared = shared & ~BIT(connection)
#endif
	od
}
#endif

#define MAY_LOSE (faults<FAULTS)
#define MAY_BE_LATE (faults<FAULTS && late==0)
#define SEND_LATE(what,a,b) faults++; late = what; l1 = a; l2 = b
#ifdef DIE
#define MAY_DIE :: id==0 -> goto DEAD
#else
#define MAY_DIE
#endif

proctype Process(byte id) {
	byte own, gen, floor, k, rejections;
NEXT:	if
	:: d_step { true -> own = OWNER(id,k); k++; assert(k<20); gen = 0; floor = 0; rejections = 0; uses[id] = own }
	fi;
ACQ:	if
	:: d_step { MINE -> acquire(own,0); gen = Lg }
	:: d_step { MINE && MAY_LOSE -> faults++; acquire(own,0) } -> goto ACQ2
	:: d_step { MAY_BE_LATE -> SEND_LATE(1,own,0) } -> goto ACQ2
	:: !MINE -> goto ACQ			/* busy: again */
	MAY_DIE
	fi;
	goto ACT;
ACQ2:	if :: goto ACQ :: goto NEXT fi;

ACT:	if
	:: d_step { shared==0 && ACCEPTS(own,gen) -> Fg = gen; Fo = own; rejections = 0 }
	:: d_step { shared==0 && ACCEPTS(own,gen) && MAY_LOSE -> faults++; Fg = gen; Fo = own } -> goto ACT2
	:: d_step { MAY_BE_LATE -> SEND_LATE(3,own,gen) } -> goto ACT2
	:: d_step { !ACCEPTS(own,gen) -> floor = Fg;
#ifdef MOST_REJECTIONS
		rejections++; if :: rejections<=MOST_REJECTIONS :: else -> assert(REJECTIONS) fi
#endif
		} -> goto HEAL
	MAY_DIE
	fi;
	goto WORK;
ACT2:	if :: goto ACT :: goto NEXT fi;

HEAL:	if
	:: d_step { MINE -> acquire(own,floor); gen = Lg }
	:: d_step { MINE && MAY_LOSE -> faults++; acquire(own,floor) } -> goto HEAL
	:: d_step { MAY_BE_LATE -> SEND_LATE(1,own,floor) } -> goto HEAL
	:: !MINE -> goto NEXT
	MAY_DIE
	fi;
	goto ACT;

WORK:	if
	:: true
	:: Lo!=own -> goto NEXT			/* a renewal finds the lease lost */
	MAY_DIE
	fi;
	if
	:: d_step { Fg==gen && Fo==own -> shared = shared|BIT(id) }
	:: !(Fg==gen && Fo==own) -> goto REL
	fi;
	if
	:: true
	MAY_DIE
	fi;
	d_step { shared = shared & ~BIT(id); done[id] = 1 };		/* COMMIT */
REL:	if
	:: d_step { true -> release(own) }
	:: d_step { MAY_BE_LATE -> SEND_LATE(2,own,0) }
	fi;
	if :: done[id] :: !done[id] -> goto NEXT fi;
	d_step { uses[id] = 0; own = 0; gen = 0; floor = 0; k = 0; rejections = 0 };
	goto DONE;
DEAD:	if
	:: d_step { true -> dead[id] = 1; uses[id] = 0; own = 0; gen = 0; floor = 0; k = 0; rejections = 0 }
	fi;
DONE:	skip
}

init { atomic { byte i; for (i : 0 .. PROCS-1) { run Process(i) }; i = 0 } }

#define ALL_DONE ((done[0]||dead[0]) && done[1] && done[PROCS-1])
ltl everyCallCommits { <> ALL_DONE }
