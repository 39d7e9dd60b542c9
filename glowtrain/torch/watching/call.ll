; A compiled step as Python calls it, without any Python code: whether all is as it was when the step was compiled, where
; the batch's elements lie, and the run. Loaded with guard.ll and arguments.ll.
;
; A call is a row of words, which call.py lays out:
;
;  0 how many arguments          1 addresses to fetch           2 the guard                3 settings, as another one
;  4 arguments                   5 numbers                      6 versions                 7 memory that the step writes
;  8 a list of results for calls 9 what fills it               10 the step                11 its table
; 12 what hears of a loss that is NaN or infinite              13 bytes of the loss       14 bits of its exponent
; 15 clock, if it is wanted     16 when the step began         17 when it ended
; 18 Python's False             19 "requires_grad"             20 NotImplemented          21 Python's type of floats
; words of a tensor's object:   22 its type   23 C++'s object
; words of C++'s object:        24 storage    25 offset        26 what autograd has
; word of a storage:            27 address
; 28 what is called in its place, if it declines               29 what makes of results what is returned, if anything
; 30 whose turn it is: whether it is somebody's, how many wait, and what tells them
; 31 where results lie: how many tensors each has, how many results are left, as many cells of the table, and as many
; addresses for each result
;
; 1 and 6 are a number and as many addresses. From the first look to the end of the step nothing of Python runs but this:
; the global lock is given back for the step alone, and then it is somebody's turn.

define internal i64 @word(ptr %row, i64 %at) #0 {
  %place = getelementptr i64, ptr %row, i64 %at
  %value = load i64, ptr %place
  ret i64 %value
}

define internal ptr @link(ptr %row, i64 %at) #0 {
  %place = getelementptr ptr, ptr %row, i64 %at
  %value = load ptr, ptr %place
  ret ptr %value
}

; What Python calls: the result, or what is called in its place gives, or NotImplemented without that, or null after an
; error.
define ptr @step(ptr %own, ptr %arguments, i64 %count, ptr %names) #0 {
entry:
  %call = call ptr @PyLong_AsVoidPtr(ptr %own)
  %unnamed = icmp eq ptr %names, null
  br i1 %unnamed, label %begin, label %declined
begin:
  %fetched = call ptr @link(ptr %call, i64 1)
  call void @fetch(ptr %fetched)
  %stocked = call i1 @stocked(ptr %call)
  br i1 %stocked, label %look, label %raised
look:
  %same = call i1 @same(ptr %call, ptr %arguments, i64 %count)
  br i1 %same, label %run, label %declined
run:
  %loss = call ptr @loss.memory(ptr %call)
  %result = call ptr @taken(ptr %call)
  call void @run(ptr %call)
  %told = call i1 @tell(ptr %call)
  br i1 %told, label %give, label %lost
give:
  %given = call ptr @given(ptr %call, ptr %result, ptr %loss)
  ret ptr %given
lost:
  call void @Py_DecRef(ptr %result)
  ret ptr null
raised:
  ret ptr null
declined:
  %instead = call ptr @link(ptr %call, i64 28)
  %none = icmp eq ptr %instead, null
  br i1 %none, label %not, label %other
other:
  %other.result = call ptr @PyObject_Vectorcall(ptr %instead, ptr %arguments, i64 %count, ptr %names)
  ret ptr %other.result
not:
  %not.implemented = call ptr @link(ptr %call, i64 20)
  call void @Py_IncRef(ptr %not.implemented)
  ret ptr %not.implemented
}

; Whether all is as it was, there are results (other threads may have taken them), and it is nobody's turn.
define internal i1 @same(ptr %call, ptr %arguments, i64 %count) #0 {
entry:
  %turn = call ptr @link(ptr %call, i64 30)
  %busy = call i64 @word(ptr %turn, i64 0)
  %free = icmp eq i64 %busy, 0
  %left = call i64 @left(ptr %call)
  %stocked = icmp ne i64 %left, 0
  %wanted = call i64 @word(ptr %call, i64 0)
  %as.many = icmp eq i64 %count, %wanted
  %ready = and i1 %free, %stocked
  %may = and i1 %ready, %as.many
  br i1 %may, label %batch, label %no
batch:
  %fits = call i1 @batch.fits(ptr %call, ptr %arguments)
  br i1 %fits, label %guard, label %no
guard:
  %guarded = call ptr @link(ptr %call, i64 2)
  %holds = call i1 @holds(ptr %guarded)
  br i1 %holds, label %settings, label %no
settings:
  %set = call ptr @link(ptr %call, i64 3)
  %hold = call i1 @holds(ptr %set)
  br i1 %hold, label %numbers, label %no
numbers:
  %followed = call i1 @numbers(ptr %call)
  ret i1 %followed
no:
  ret i1 false
}

; The step itself, while others may use Python.
define internal void @run(ptr %call) #0 {
  %versions = call ptr @link(ptr %call, i64 6)
  call void @rise(ptr %versions)
  %turn = call ptr @link(ptr %call, i64 30)
  store i64 1, ptr %turn
  call void @tick(ptr %call, i64 16)
  %step = call ptr @link(ptr %call, i64 10)
  %table = call ptr @link(ptr %call, i64 11)
  %thread = call ptr @PyEval_SaveThread()
  call void %step(ptr %table)
  call void @PyEval_RestoreThread(ptr %thread)
  call void @tick(ptr %call, i64 17)
  store i64 0, ptr %turn
  ret void
}

; Tell threads that wait for their turn; false after an error.
define internal i1 @tell(ptr %call) #0 {
entry:
  %turn = call ptr @link(ptr %call, i64 30)
  %waiting = call i64 @word(ptr %turn, i64 1)
  %none = icmp eq i64 %waiting, 0
  br i1 %none, label %yes, label %ask
ask:
  %tell = call ptr @link(ptr %turn, i64 2)
  %told = call i1 @done(ptr %tell)
  ret i1 %told
yes:
  ret i1 true
}

define internal i64 @left(ptr %call) #0 {
  %rows = call ptr @link(ptr %call, i64 31)
  %left = call i64 @word(ptr %rows, i64 1)
  ret i64 %left
}

; Whether there are results left, after new ones were made if need be; false after an error.
define internal i1 @stocked(ptr %call) #0 {
entry:
  %left = call i64 @left(ptr %call)
  %none = icmp eq i64 %left, 0
  br i1 %none, label %ask, label %yes
ask:
  %fill = call ptr @link(ptr %call, i64 9)
  %filled = call i1 @done(ptr %fill)
  ret i1 %filled
yes:
  ret i1 true
}

; Call a function of Python's; false after an error.
define internal i1 @done(ptr %function) #0 {
entry:
  %answer = call ptr @PyObject_CallNoArgs(ptr %function)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %no, label %yes
yes:
  call void @Py_DecRef(ptr %answer)
  ret i1 true
no:
  ret i1 false
}

; The row of addresses of the next results.
define internal ptr @next.memory(ptr %call) #0 {
  %rows = call ptr @link(ptr %call, i64 31)
  %cells = call i64 @word(ptr %rows, i64 0)
  %left = call i64 @word(ptr %rows, i64 1)
  %ahead = mul i64 %left, %cells
  %at = add i64 %ahead, 2
  %row = getelementptr ptr, ptr %rows, i64 %at
  ret ptr %row
}

define internal ptr @loss.memory(ptr %call) #0 {
  %row = call ptr @next.memory(ptr %call)
  %loss = load ptr, ptr %row
  ret ptr %loss
}

; The next results, out of the list; the table then points to them.
define internal ptr @taken(ptr %call) #0 {
entry:
  %rows = call ptr @link(ptr %call, i64 31)
  %cells = call i64 @word(ptr %rows, i64 0)
  %row = call ptr @next.memory(ptr %call)
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %next, %set ]
  %all = icmp eq i64 %n, %cells
  br i1 %all, label %take, label %set
set:
  %next = add i64 %n, 1
  %cell.at = add i64 %n, 2
  %cell = call ptr @link(ptr %rows, i64 %cell.at)
  %memory = call ptr @link(ptr %row, i64 %n)
  store ptr %memory, ptr %cell
  br label %one
take:
  %list = call ptr @link(ptr %call, i64 8)
  %left = call i64 @word(ptr %rows, i64 1)
  %fewer = sub i64 %left, 1
  %left.at = getelementptr i64, ptr %rows, i64 1
  store i64 %fewer, ptr %left.at
  %found = call i64 @PyList_GetItem(ptr %list, i64 %fewer)
  %result = inttoptr i64 %found to ptr
  call void @Py_IncRef(ptr %result)
  %false = call ptr @link(ptr %call, i64 18)
  call void @Py_IncRef(ptr %false)
  %removed = call i32 @PyList_SetItem(ptr %list, i64 %fewer, ptr %false)
  ret ptr %result
}

; Note the time in a word of the call, if a clock is there.
define internal void @tick(ptr %call, i64 %at) #0 {
entry:
  %clock = call ptr @link(ptr %call, i64 15)
  %none = icmp eq ptr %clock, null
  br i1 %none, label %end, label %ask
ask:
  %now = call ptr @PyObject_CallNoArgs(ptr %clock)
  %time = call double @PyFloat_AsDouble(ptr %now)
  call void @Py_DecRef(ptr %now)
  %place = getelementptr double, ptr %call, i64 %at
  store double %time, ptr %place
  br label %end
end:
  ret void
}

; Numbers of Python as they are now, into those that the step reads: how many, then for each a dict, a key, where it
; goes, and its bytes there. They are finite floats from 0 up.
define internal i1 @numbers(ptr %call) #0 {
entry:
  %row = call ptr @link(ptr %call, i64 5)
  %float = call ptr @link(ptr %call, i64 21)
  %type.at = call i64 @word(ptr %call, i64 22)
  %count = call i64 @word(ptr %row, i64 0)
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %next, %taken ]
  %all = icmp eq i64 %n, %count
  br i1 %all, label %yes, label %look
look:
  %next = add i64 %n, 1
  %fourfold = shl i64 %n, 2
  %number.at = add i64 %fourfold, 1
  %number = getelementptr i64, ptr %row, i64 %number.at
  %dict = call ptr @link(ptr %number, i64 0)
  %key = call ptr @link(ptr %number, i64 1)
  %place = call ptr @link(ptr %number, i64 2)
  %bytes = call i64 @word(ptr %number, i64 3)
  %found = call i64 @PyDict_GetItem(ptr %dict, ptr %key)
  %now = inttoptr i64 %found to ptr
  %missing = icmp eq ptr %now, null
  br i1 %missing, label %no, label %typed
typed:
  %type = call ptr @link(ptr %now, i64 %type.at)
  %is = icmp eq ptr %type, %float
  br i1 %is, label %value, label %no
value:
  %double = call double @PyFloat_AsDouble(ptr %now)
  %at.least = fcmp oge double %double, 0.0
  %finite = fcmp olt double %double, 0x7FF0000000000000
  %allowed = and i1 %at.least, %finite
  br i1 %allowed, label %store, label %no
store:
  %narrow = icmp eq i64 %bytes, 4
  br i1 %narrow, label %single, label %whole
single:
  %rounded = fptrunc double %double to float
  store float %rounded, ptr %place
  br label %taken
whole:
  store double %double, ptr %place
  br label %taken
taken:
  br label %one
yes:
  ret i1 true
no:
  ret i1 false
}

; Counts of changes, which autograd compares.
define internal void @rise(ptr %row) #0 {
entry:
  %count = call i64 @word(ptr %row, i64 0)
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %next, %add ]
  %all = icmp eq i64 %n, %count
  br i1 %all, label %end, label %add
add:
  %next = add i64 %n, 1
  %version = call ptr @link(ptr %row, i64 %next)
  %before = atomicrmw add ptr %version, i32 1 monotonic
  br label %one
end:
  ret void
}

; What a call returns of its results, which it gives up, after a word on a loss that is not finite.
define internal ptr @given(ptr %call, ptr %results, ptr %loss) #0 {
entry:
  %size = call i64 @word(ptr %call, i64 13)
  %mask = call i64 @word(ptr %call, i64 14)
  %bits = call i64 @bits(ptr %loss, i64 %size)
  %exponent = and i64 %bits, %mask
  %finite = icmp ne i64 %exponent, %mask
  br i1 %finite, label %make, label %say
say:
  %heed = call ptr @link(ptr %call, i64 12)
  %said = call ptr @PyObject_CallOneArg(ptr %heed, ptr %results)
  %failed = icmp eq ptr %said, null
  br i1 %failed, label %raised, label %heard
heard:
  call void @Py_DecRef(ptr %said)
  br label %make
make:
  %maker = call ptr @link(ptr %call, i64 29)
  %alone = icmp eq ptr %maker, null
  br i1 %alone, label %one, label %several
one:
  ret ptr %results
several:
  %given = call ptr @PyObject_CallOneArg(ptr %maker, ptr %results)
  call void @Py_DecRef(ptr %results)
  ret ptr %given
raised:
  call void @Py_DecRef(ptr %results)
  ret ptr null
}

define internal i64 @bits(ptr %memory, i64 %size) #0 {
entry:
  switch i64 %size, label %eight [
    i64 2, label %two
    i64 4, label %four
  ]
two:
  %half = load i16, ptr %memory
  %half.wide = zext i16 %half to i64
  ret i64 %half.wide
four:
  %single = load i32, ptr %memory
  %single.wide = zext i32 %single to i64
  ret i64 %single.wide
eight:
  %double = load i64, ptr %memory
  ret i64 %double
}

declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
