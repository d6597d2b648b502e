/* operations.pml - an effect that is named by an operation id happens at most once (I10), whatever becomes of its transactions.
 *
 * A write with an operation id claims a receipt (unique by id), does its effect and records its result in one transaction. The
 * client may lose its connection at any moment; the backend lives on then, and commits or rolls back when it pleases. Every
 * process has the same operations to get done (redelivery), in opposite orders. The lease is left out: it may expire at any
 * moment, so a grant is simply the next number; fence.pml has the rest.
 *
 * Options     (default)        a commit without an answer is settled by a new activation, then the operation is sent again
 *             -DRESEND         ... the same operation is sent again under the same grant
 *             -DSETTLE         ... it is looked for under the same grant: wait until the claim is no longer pending, then read the
 *                              receipt. "Not accepted" lets the process send it again, or leave it and go on
 *             -DTWO_KEYS       the senders hold leases of different keys: only the receipt is between them
 * Checks      I10      the effect of an operation is committed at most once
 *             TOLD     "done before" is answered only where the effect is committed; "not accepted" only where it never will be
 *             ALONE    no other transaction, of the same owner neither, commits between a transaction's READ and its COMMIT
 *                      (-DNO_ALONE leaves it out)
 *
 * Wrong variants, which the checker must refute:
 *             -DGO_ON          a commit without an answer is forgotten: on to the next operation under the same grant
 *             -DPEEK           (with SETTLE) the receipt is read without waiting
 *             -DNO_RECEIPT     no receipts: a duplicate is done again
 *             -DLOOK_FIRST     SELECT the receipt, then insert it without a unique index
 *             -DRECEIPT_AFTER  the receipt is written by a transaction of its own, after the effect
 *             -DRECEIPT_BEFORE the receipt is written by a transaction of its own, before the effect
 */
#ifndef PROCS
#define PROCS 2
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef GRANTS
#define GRANTS 2		/* how many grants a process may take */
#endif
#define BACKENDS 2		/* per process: the one it uses, and one that it has lost */
#define SLOTS (PROCS*BACKENDS)
#define SLOT(i) (id*BACKENDS+(i))
#define BIT(i) (1<<(i))

bit I10, TOLD, ALONE;		/* never set: they name a violation */
#define DEMAND(what, name) if :: (what) :: else -> assert(name) fi

/* what a backend is doing */
#define IDLE 0
#define READY 1			/* its client has read what the write stands on; nothing is sent yet */
#define SENT 2
#define GUARDED 3
#define CLAIMED 4		/* the receipt is inserted and the effect done; not committed */
#define AFTERWARDS 5		/* RECEIPT_AFTER: the effect is committed, the receipt is not */
#define COMMITTED 6
#define REFUSED 7
#define DUPLICATE 8
#define ABORTED 9

byte C, F;			/* last grant issued; the fence (one owner per generation here) */
byte shared;			/* bit s: backend s holds the share lock */
byte state[SLOTS], grant[SLOTS], op[SLOTS];
byte orphan;			/* bit s: the client of backend s is gone */
byte clean;			/* bit s: nobody else has committed since the READ for backend s */
byte receipts, claims[OPS+1];	/* committed receipts, as bits; who has inserted one and not committed (slot+1) */
byte effects[OPS+1];		/* ghost: committed effects */
#ifdef SETTLE
byte denied;			/* ghost, bit s: the client of lost backend s was told "not accepted" */
/* COMMIT was sent; what breaks before it is known to be nothing */
#define LOST(s) (state[s]==CLAIMED || state[s]==COMMITTED || state[s]==ABORTED)
#else
#define LOST(s) (state[s]!=IDLE)
#endif
#ifdef PEEK
#define SETTLED(o) true
#else
#define SETTLED(o) (claims[o]==0)	/* an INSERT of the same id would wait until then */
#endif

inline over(s, outcome) {
	clean = clean & ~BIT(s);
#ifdef SETTLE
	denied = denied & ~BIT(s);
#endif
	if
	:: orphan&BIT(s) -> orphan = orphan & ~BIT(s); state[s] = IDLE; op[s] = 0; grant[s] = 0
	:: else -> state[s] = outcome
	fi
}
inline unlock(s) {
	shared = shared & ~BIT(s);
	if :: claims[op[s]]==s+1 -> claims[op[s]] = 0 :: else fi
}

proctype Backend(byte s) {
end:	do
	:: atomic { state[s]==SENT ->
#ifdef TWO_KEYS
		state[s] = GUARDED
#else
		if :: F==grant[s] -> shared = shared|BIT(s); state[s] = GUARDED
		   :: else -> over(s,REFUSED)
		fi
#endif
	   }
	   /* INSERT .. ON CONFLICT DO NOTHING waits for a twin that is not committed yet */
	:: atomic { state[s]==GUARDED && claims[op[s]]==0 ->
#if defined(NO_RECEIPT)
		state[s] = CLAIMED
#elif defined(LOOK_FIRST) || defined(RECEIPT_AFTER)
		if :: receipts&BIT(op[s]) -> unlock(s); over(s,DUPLICATE)
		   :: else -> state[s] = CLAIMED
		fi
#elif defined(RECEIPT_BEFORE)
		if :: receipts&BIT(op[s]) -> DEMAND(effects[op[s]]==1, TOLD); unlock(s); over(s,DUPLICATE)
		   :: else -> receipts = receipts|BIT(op[s]); state[s] = CLAIMED
		fi
#else
		if :: receipts&BIT(op[s]) -> DEMAND(effects[op[s]]==1, TOLD); unlock(s); over(s,DUPLICATE)
		   :: else -> claims[op[s]] = s+1; state[s] = CLAIMED
		fi
#endif
	   }
	:: atomic { state[s]==CLAIMED ->		/* COMMIT */
#ifndef NO_ALONE
		DEMAND(clean&BIT(s), ALONE);
#endif
#ifdef SETTLE
		DEMAND(!(denied&BIT(s)), TOLD);
#endif
		effects[op[s]]++;
		DEMAND(effects[op[s]]<=1, I10);
		clean = 0;
		unlock(s);
#ifdef RECEIPT_AFTER
		state[s] = AFTERWARDS
#else
		receipts = receipts|BIT(op[s]); over(s,COMMITTED)
#endif
	   }
	:: atomic { state[s]==AFTERWARDS -> receipts = receipts|BIT(op[s]); over(s,COMMITTED) }
	   /* the server ends the session, or the database crashes */
	:: atomic { state[s]>=SENT && state[s]<=AFTERWARDS -> unlock(s); over(s,ABORTED) }
	od
}

#define OP (id==0 -> n : OPS+1-n)
#define TAKE(outcome) state[SLOT(b)]==outcome -> state[SLOT(b)] = IDLE; op[SLOT(b)] = 0; grant[SLOT(b)] = 0; b = 0

proctype Process(byte id) {
	byte gen, n, taken, b;
#ifdef SETTLE
	byte lost;		/* the backend that is looked for, + 1 */
#endif
	n = 1;
GRANT:	/* a new grant, and its activation, which waits for what the grant before has left open */
	if
	:: d_step { taken<GRANTS -> taken++; C++; gen = C }
	:: d_step { taken==GRANTS -> taken = 0; n = 0; gen = 0 } -> goto DONE
	fi;
	if
	:: d_step { shared==0 && F<gen -> F = gen }
	:: F>gen -> goto GRANT
	fi;
NEXT:	if :: d_step { n>OPS -> taken = 0; n = 0; gen = 0 } -> goto DONE :: n<=OPS fi;
SEND:	atomic {
		if :: state[SLOT(0)]==IDLE -> b = 0 :: else -> state[SLOT(1)]==IDLE -> b = 1 fi;
		state[SLOT(b)] = READY; op[SLOT(b)] = OP; grant[SLOT(b)] = gen;
		clean = clean|BIT(SLOT(b))
	};
	state[SLOT(b)] = SENT;
	if
	:: d_step { TAKE(COMMITTED); n++ } -> goto NEXT
	:: d_step { TAKE(DUPLICATE); n++ } -> goto NEXT
	:: d_step { TAKE(REFUSED) } -> goto GRANT
	:: d_step { TAKE(ABORTED) } -> goto SEND
	:: d_step { LOST(SLOT(b)) ->		/* the connection is lost: unknown */
#ifdef SETTLE
		lost = SLOT(b)+1;
#endif
		if
		:: state[SLOT(b)]>=COMMITTED -> state[SLOT(b)] = IDLE; op[SLOT(b)] = 0; grant[SLOT(b)] = 0
		:: else -> orphan = orphan|BIT(SLOT(b))
		fi;
		b = 0 } ->
#if defined(RESEND)
		goto SEND
#elif defined(GO_ON)
		n++; goto NEXT
#elif defined(SETTLE)
		if
		:: d_step { SETTLED(OP) && receipts&BIT(OP) -> DEMAND(effects[OP]==1, TOLD); lost = 0; n++ } -> goto NEXT
		:: d_step { SETTLED(OP) && !(receipts&BIT(OP)) ->
			if :: orphan&BIT(lost-1) -> denied = denied|BIT(lost-1) :: else fi; lost = 0 } ->
			if :: goto SEND :: n++; goto NEXT fi
		:: d_step { lost = 0 } -> goto GRANT	/* it took too long */
		fi
#else
		goto GRANT
#endif
	fi;
DONE:	skip
}

init { atomic { byte i; for (i : 0 .. SLOTS-1) { run Backend(i) }; for (i : 0 .. PROCS-1) { run Process(i) }; i = 0 } }
