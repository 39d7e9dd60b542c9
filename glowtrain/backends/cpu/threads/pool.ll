; Threads that share out a kernel's tasks, and what a step calls to have that done.
;
; One thread calls @run, and works itself; as many workers as the pool has besides help it. The job's tasks are cut into
; chunks, and the chunks into one span for each thread, so that a thread that comes back to the same tasks finds what it
; wrote in its own cache. Whoever is done with its own span takes chunks of the others': nobody waits for a thread that
; the system has stopped, unless that one is in the middle of a chunk.
;
; Who may touch what: chunks are claimed by taking their number from their span's %left. The job is read only after a
; claim that succeeded, because a job cannot end before all chunks that were claimed have been done; so one that comes
; late, with what it knows of an earlier job, does no harm. (Its address of the context serves to ask for the lines
; behind it, nothing else.) A worker sleeps on %woken until %number has changed, the caller on %finished until %done has
; reached the number of chunks. Either side says that it sleeps before it looks a last time, and the other one acts
; before it looks who sleeps; these four are sequentially consistent, so one of them sees it.

%job = type { ptr, ptr, i64, i64, i64, i64, i64, i64 }
; body, context, tasks, tasks of a chunk, chunks, the caller's floating-point mode (rounding, denormals), the job's
; number: in one cache line, so that who sees the number has all of it
%span = type { i64, i64, [6 x i64] }
; chunks that are left, the chunk behind the last
%pool = type {
  ptr, i64, i64, [5 x i64],     ; 0 @run, 1 threads, 2 spins
  i64, [7 x i64],               ; 4 busy: 1 while a job runs
  %job,                         ; 6
  i64, i64, i64, [5 x i64],     ; 7 workers that sleep, 8 whether to stop, 9 jobs in a row for which none was woken
  i64, [7 x i64],               ; 11 done: chunks
  i64, [7 x i64],               ; 13 waiting: 1 while the caller sleeps
  [128 x i8], [128 x i8], [128 x i8],  ; 15 lock, 16 woken, 17 finished
  [0 x %span]                   ; 18
}

declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()

; The bytes of a pool.
define i64 @size(i64 %threads) #0 {
  %end = getelementptr %pool, ptr null, i64 0, i32 18, i64 %threads
  %bytes = ptrtoint ptr %end to i64
  ret i64 %bytes
}

; A pool in memory that is zero, aligned to 64 bytes.
define void @prepare(ptr %pool, i64 %threads, i64 %spins) #0 {
  store ptr @run, ptr %pool
  %threads.at = getelementptr %pool, ptr %pool, i64 0, i32 1
  store i64 %threads, ptr %threads.at
  %spins.at = getelementptr %pool, ptr %pool, i64 0, i32 2
  store i64 %spins, ptr %spins.at
  %lock = getelementptr %pool, ptr %pool, i64 0, i32 15
  %woken = getelementptr %pool, ptr %pool, i64 0, i32 16
  %finished = getelementptr %pool, ptr %pool, i64 0, i32 17
  call i32 @pthread_mutex_init(ptr %lock, ptr null)
  call i32 @pthread_cond_init(ptr %woken, ptr null)
  call i32 @pthread_cond_init(ptr %finished, ptr null)
  ret void
}

; Run %body(context, thread, begin, end) over all tasks, in chunks of %each; %wake says whether threads that sleep are
; worth waking. The 16th of smaller jobs in a row wakes them, too: one would not pay for it, but more seem to come.
; Where a job runs already, the caller does all of it alone.
define void @run(ptr %pool, ptr %body, ptr %context, i64 %tasks, i64 %each, i64 %wake) #0 {
entry:
  %busy.at = getelementptr %pool, ptr %pool, i64 0, i32 4
  %taken = cmpxchg ptr %busy.at, i64 0, i64 1 acquire monotonic
  %free = extractvalue { i64, i1 } %taken, 1
  br i1 %free, label %post, label %alone
alone:
  call void %body(ptr %context, i64 0, i64 0, i64 %tasks)
  ret void

post:
  %above = add i64 %tasks, %each
  %behind = sub i64 %above, 1
  %chunks = udiv i64 %behind, %each
  %body.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 0
  store ptr %body, ptr %body.at
  %context.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 1
  store ptr %context, ptr %context.at
  %tasks.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 2
  store i64 %tasks, ptr %tasks.at
  %each.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 3
  store i64 %each, ptr %each.at
  %chunks.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 4
  store i64 %chunks, ptr %chunks.at
  %mode.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 5
  SAVE_MODE
  %done.at = getelementptr %pool, ptr %pool, i64 0, i32 11
  store atomic i64 0, ptr %done.at monotonic, align 8
  %threads.at = getelementptr %pool, ptr %pool, i64 0, i32 1
  %threads = load i64, ptr %threads.at
  br label %spans
spans:
  %thread = phi i64 [ 0, %post ], [ %next, %spans ]
  %next = add i64 %thread, 1
  %first.scaled = mul i64 %chunks, %thread
  %first = udiv i64 %first.scaled, %threads
  %last.scaled = mul i64 %chunks, %next
  %last = udiv i64 %last.scaled, %threads
  %count = sub i64 %last, %first
  %last.at = getelementptr %pool, ptr %pool, i64 0, i32 18, i64 %thread, i32 1
  store atomic i64 %last, ptr %last.at monotonic, align 8
  %left.at = getelementptr %pool, ptr %pool, i64 0, i32 18, i64 %thread, i32 0
  store atomic i64 %count, ptr %left.at release, align 8
  %more = icmp ult i64 %next, %threads
  br i1 %more, label %spans, label %announce
announce:
  %number.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 6
  %number = atomicrmw add ptr %number.at, i64 1 seq_cst
  %sleepers.at = getelementptr %pool, ptr %pool, i64 0, i32 7
  %sleepers = load atomic i64, ptr %sleepers.at seq_cst, align 8
  %some = icmp ne i64 %sleepers, 0
  %large = icmp ne i64 %wake, 0
  %missed.at = getelementptr %pool, ptr %pool, i64 0, i32 9
  %missed.before = load i64, ptr %missed.at
  %missed.now = add i64 %missed.before, 1
  %many = icmp uge i64 %missed.now, 16
  %worth = or i1 %large, %many
  %waken = and i1 %some, %worth
  %left.asleep = xor i1 %some, %waken
  %missed = select i1 %left.asleep, i64 %missed.now, i64 0
  store i64 %missed, ptr %missed.at
  %lock = getelementptr %pool, ptr %pool, i64 0, i32 15
  br i1 %waken, label %rouse, label %help
rouse:
  %woken = getelementptr %pool, ptr %pool, i64 0, i32 16
  call i32 @pthread_mutex_lock(ptr %lock)
  call i32 @pthread_cond_broadcast(ptr %woken)
  call i32 @pthread_mutex_unlock(ptr %lock)
  br label %help
help:
  call void @share(ptr %pool, i64 0, i64 %threads)
  %spins.at = getelementptr %pool, ptr %pool, i64 0, i32 2
  %spins = load i64, ptr %spins.at
  br label %spin
spin:
  %turn = phi i64 [ 0, %help ], [ %turns, %pause ]
  %done = load atomic i64, ptr %done.at acquire, align 8
  %over = icmp eq i64 %done, %chunks
  br i1 %over, label %end, label %patient
patient:
  %turns = add i64 %turn, 1
  %tired = icmp ugt i64 %turns, %spins
  br i1 %tired, label %sleep, label %pause
pause:
  PAUSE
  br label %spin

sleep:
  %waiting.at = getelementptr %pool, ptr %pool, i64 0, i32 13
  %finished = getelementptr %pool, ptr %pool, i64 0, i32 17
  call i32 @pthread_mutex_lock(ptr %lock)
  store atomic i64 1, ptr %waiting.at seq_cst, align 8
  br label %look
look:
  %done.now = load atomic i64, ptr %done.at seq_cst, align 8
  %over.now = icmp eq i64 %done.now, %chunks
  br i1 %over.now, label %awake, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %finished, ptr %lock)
  br label %look
awake:
  store atomic i64 0, ptr %waiting.at monotonic, align 8
  call i32 @pthread_mutex_unlock(ptr %lock)
  br label %end
end:
  store atomic i64 0, ptr %busy.at release, align 8
  ret void
}

; Claim and do chunks, of %thread's own span first, until none is left; then say how many. (Saying so for each would
; have the line of %done go from core to core as often.) A claim is half of what is left of a span, so that few claims,
; each of which waits until all that was stored before has left the core, end in small ones.
define internal void @share(ptr %pool, i64 %thread, i64 %threads) #0 {
entry:
  br label %span
span:
  %step = phi i64 [ 0, %entry ], [ %following, %empty ]
  %so.far = phi i64 [ 0, %entry ], [ %own, %empty ]
  %beyond = add i64 %thread, %step
  %at = urem i64 %beyond, %threads
  %left.at = getelementptr %pool, ptr %pool, i64 0, i32 18, i64 %at, i32 0
  br label %look
look:
  %own = phi i64 [ %so.far, %span ], [ %own, %claim ], [ %more.own, %work ]
  %left = load atomic i64, ptr %left.at monotonic, align 8
  %any = icmp sgt i64 %left, 0
  br i1 %any, label %claim, label %empty
claim:
  %half = lshr i64 %left, 1
  %count = sub i64 %left, %half
  %claimed = cmpxchg ptr %left.at, i64 %left, i64 %half acq_rel monotonic
  %mine = extractvalue { i64, i1 } %claimed, 1
  br i1 %mine, label %work, label %look
work:
  call void @chunks(ptr %pool, i64 %thread, i64 %at, i64 %left, i64 %count)
  %more.own = add i64 %own, %count
  br label %look
empty:
  %following = add i64 %step, 1
  %more = icmp ult i64 %following, %threads
  br i1 %more, label %span, label %all
all:
  %some = icmp ne i64 %own, 0
  br i1 %some, label %say, label %end
say:
  call void @say(ptr %pool, i64 %own)
  br label %end
end:
  ret void
}

; Do the %count chunks that were claimed from a span when %left were left, as one range.
define internal void @chunks(ptr %pool, i64 %thread, i64 %span, i64 %left, i64 %count) #0 {
entry:
  %last.at = getelementptr %pool, ptr %pool, i64 0, i32 18, i64 %span, i32 1
  %last = load atomic i64, ptr %last.at monotonic, align 8
  %number = sub i64 %last, %left
  %behind = add i64 %number, %count
  %body.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 0
  %body = load ptr, ptr %body.at
  %context.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 1
  %context = load ptr, ptr %context.at
  %tasks.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 2
  %tasks = load i64, ptr %tasks.at
  %each.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 3
  %each = load i64, ptr %each.at
  %worker = icmp ne i64 %thread, 0
  br i1 %worker, label %adopt, label %begin.chunks
adopt:
  %mode.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 5
  ADOPT_MODE
  br label %begin.chunks
begin.chunks:
  %begin = mul i64 %number, %each
  %full = mul i64 %behind, %each
  %end = call i64 @llvm.umin.i64(i64 %full, i64 %tasks)
  call void %body(ptr %context, i64 %thread, i64 %begin, i64 %end)
  ret void
}

; Say that so many chunks have been done.
define internal void @say(ptr %pool, i64 %count) #0 {
entry:
  %chunks.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 4
  %chunks = load i64, ptr %chunks.at
  %done.at = getelementptr %pool, ptr %pool, i64 0, i32 11
  %before = atomicrmw add ptr %done.at, i64 %count seq_cst
  %done = add i64 %before, %count
  %over = icmp eq i64 %done, %chunks
  br i1 %over, label %last.one, label %end
last.one:
  %waiting.at = getelementptr %pool, ptr %pool, i64 0, i32 13
  %waiting = load atomic i64, ptr %waiting.at seq_cst, align 8
  %sleeps = icmp ne i64 %waiting, 0
  br i1 %sleeps, label %tell, label %end
tell:
  %lock = getelementptr %pool, ptr %pool, i64 0, i32 15
  %finished = getelementptr %pool, ptr %pool, i64 0, i32 17
  call i32 @pthread_mutex_lock(ptr %lock)
  call i32 @pthread_cond_signal(ptr %finished)
  call i32 @pthread_mutex_unlock(ptr %lock)
  br label %end
end:
  ret void
}

; What thread %thread (1 or more) of a pool runs: jobs, until it is told to stop. Where there is none it looks again
; %spins times at once, twice as often after others have had its core, and then sleeps.
define void @work(ptr %pool, i64 %thread) #0 {
entry:
  %threads.at = getelementptr %pool, ptr %pool, i64 0, i32 1
  %threads = load i64, ptr %threads.at
  %spins.at = getelementptr %pool, ptr %pool, i64 0, i32 2
  %spins = load i64, ptr %spins.at
  %most = mul i64 %spins, 3
  %context.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 1
  %number.at = getelementptr %pool, ptr %pool, i64 0, i32 6, i32 6
  %sleepers.at = getelementptr %pool, ptr %pool, i64 0, i32 7
  %stop.at = getelementptr %pool, ptr %pool, i64 0, i32 8
  %lock = getelementptr %pool, ptr %pool, i64 0, i32 15
  %woken = getelementptr %pool, ptr %pool, i64 0, i32 16
  br label %job
job:
  %number = load atomic i64, ptr %number.at seq_cst, align 8
  %context = load atomic ptr, ptr %context.at monotonic, align 8
  %behind = getelementptr i8, ptr %context, i64 64
  call void @llvm.prefetch.p0(ptr %context, i32 0, i32 3, i32 1)
  call void @llvm.prefetch.p0(ptr %behind, i32 0, i32 3, i32 1)
  call void @share(ptr %pool, i64 %thread, i64 %threads)
  %leave = load atomic i64, ptr %stop.at monotonic, align 8
  %leaving = icmp ne i64 %leave, 0
  br i1 %leaving, label %end, label %spin
spin:
  %turn = phi i64 [ 0, %job ], [ %turns, %pause ], [ %turns, %yield ]
  %now = load atomic i64, ptr %number.at acquire, align 8
  %new = icmp ne i64 %now, %number
  br i1 %new, label %job, label %patient
patient:
  %turns = add i64 %turn, 1
  %restless = icmp ule i64 %turns, %spins
  br i1 %restless, label %pause, label %waver
pause:
  PAUSE
  br label %spin
waver:
  %tired = icmp ugt i64 %turns, %most
  br i1 %tired, label %sleep, label %yield
yield:
  call i32 @sched_yield()
  br label %spin

sleep:
  call i32 @pthread_mutex_lock(ptr %lock)
  %before = atomicrmw add ptr %sleepers.at, i64 1 seq_cst
  br label %look
look:
  %stop = load atomic i64, ptr %stop.at seq_cst, align 8
  %stopping = icmp ne i64 %stop, 0
  %now.late = load atomic i64, ptr %number.at seq_cst, align 8
  %new.late = icmp ne i64 %now.late, %number
  %reason = or i1 %stopping, %new.late
  br i1 %reason, label %rise, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %woken, ptr %lock)
  br label %look
rise:
  %after = atomicrmw sub ptr %sleepers.at, i64 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr %lock)
  br i1 %stopping, label %end, label %job
end:
  ret void
}

; Have all workers leave once they have nothing to do.
define void @stop(ptr %pool) #0 {
  %stop.at = getelementptr %pool, ptr %pool, i64 0, i32 8
  %lock = getelementptr %pool, ptr %pool, i64 0, i32 15
  %woken = getelementptr %pool, ptr %pool, i64 0, i32 16
  call i32 @pthread_mutex_lock(ptr %lock)
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  call i32 @pthread_cond_broadcast(ptr %woken)
  call i32 @pthread_mutex_unlock(ptr %lock)
  ret void
}
