; Runs of a step in a row, in one call.
;
; A step reads the addresses of its buffers in a table. Those of a batch's inputs and of the outputs move on from run to
; run: each has a slot of the table, its address in the first run, and the bytes from run to run. After each run the
; scalar that a slot of the table points to is looked at: the run in which all bits of a mask are set in it (as those of
; the exponent are in NaN and infinity) is the last.

%moving = type { i64, i64, i64 }
; slot, address in the first run, bytes from run to run
%runs = type {
  ptr, ptr, i64,     ; 0 the step, 1 its table, 2 runs that are wanted, at least one
  i64,               ; 3 runs that were made
  i64, i64,          ; 4 slot of the scalar, 5 the mask; the scalar has 8 bytes, those beyond its type are zero
  i64, [0 x %moving] ; 6 how many move, 7 these
}

define void @drive(ptr %runs) #0 {
entry:
  %step = load ptr, ptr %runs
  %table.at = getelementptr %runs, ptr %runs, i64 0, i32 1
  %table = load ptr, ptr %table.at
  %wanted.at = getelementptr %runs, ptr %runs, i64 0, i32 2
  %wanted = load i64, ptr %wanted.at
  %made.at = getelementptr %runs, ptr %runs, i64 0, i32 3
  %scalar.slot = getelementptr %runs, ptr %runs, i64 0, i32 4
  %slot = load i64, ptr %scalar.slot
  %watched.at = getelementptr ptr, ptr %table, i64 %slot
  %mask.at = getelementptr %runs, ptr %runs, i64 0, i32 5
  %mask = load i64, ptr %mask.at
  %count.at = getelementptr %runs, ptr %runs, i64 0, i32 6
  %count = load i64, ptr %count.at
  br label %run
run:
  %made = phi i64 [ 0, %entry ], [ %made.now, %ran ]
  br label %move
move:
  %at = phi i64 [ 0, %run ], [ %next, %set ]
  %left = icmp ult i64 %at, %count
  br i1 %left, label %set, label %call
set:
  %moving.at = getelementptr %runs, ptr %runs, i64 0, i32 7, i64 %at, i32 0
  %moving = load i64, ptr %moving.at
  %first.at = getelementptr %runs, ptr %runs, i64 0, i32 7, i64 %at, i32 1
  %first = load i64, ptr %first.at
  %bytes.at = getelementptr %runs, ptr %runs, i64 0, i32 7, i64 %at, i32 2
  %bytes = load i64, ptr %bytes.at
  %beyond = mul i64 %made, %bytes
  %address = add i64 %first, %beyond
  %entry.at = getelementptr i64, ptr %table, i64 %moving
  store i64 %address, ptr %entry.at
  %next = add i64 %at, 1
  br label %move
call:
  call void %step(ptr %table)
  %made.now = add i64 %made, 1
  %watched = load ptr, ptr %watched.at
  %scalar = load i64, ptr %watched
  %bits = and i64 %scalar, %mask
  %bad = icmp eq i64 %bits, %mask
  %enough = icmp eq i64 %made.now, %wanted
  %over = or i1 %bad, %enough
  br i1 %over, label %end, label %ran
ran:
  br label %run
end:
  store i64 %made.now, ptr %made.at
  ret void
}
