; Whether Python objects and memory are still as they were: many of them, looked at in one call.
;
; What is expected lies in a row of words: entries, then a zero. An entry is what it looks at (one of the numbers below),
; how many words are expected, an object or an address, a key, and the words. The caller holds Python's global lock.
;
; 1 memory at an address   2 the values of a dict, in order; zero stands for any   3 the elements of a list
; 4 the value of a key of a dict   5 what a function without arguments returns
; 6 memory that begins anywhere: the key says how many bytes, and the last word has zeros behind them

; What lies at addresses, a row of them behind their number, has mostly left the caches: all of it is asked for before
; any is waited for.
define void @fetch(ptr %row) #0 {
entry:
  %count = load i64, ptr %row
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %next, %ask ]
  %end = icmp eq i64 %n, %count
  br i1 %end, label %asked, label %ask
ask:
  %next = add i64 %n, 1
  %at = getelementptr ptr, ptr %row, i64 %next
  %line = load ptr, ptr %at
  call void @llvm.prefetch.p0(ptr %line, i32 0, i32 3, i32 1)
  br label %one
asked:
  ret void
}

; Whether all holds of a guard, a row of three addresses: 0 what is looked at quickly   1 entries that are always looked
; at   2 all entries, which decide where a quick look sees a change: what was changed back is as it was. The quick look
; is renewed then.
define zeroext i1 @holds(ptr %guard) #0 {
entry:
  %quick = load ptr, ptr %guard
  %always.at = getelementptr ptr, ptr %guard, i64 1
  %always = load ptr, ptr %always.at
  %seen = call i1 @quick(ptr %quick, i1 false)
  br i1 %seen, label %rest, label %whole
rest:
  %differs = call i64 @changed(ptr %always)
  %rest.hold = icmp slt i64 %differs, 0
  ret i1 %rest.hold
whole:
  %all.at = getelementptr ptr, ptr %guard, i64 2
  %all = load ptr, ptr %all.at
  %differ = call i64 @changed(ptr %all)
  %all.hold = icmp slt i64 %differ, 0
  br i1 %all.hold, label %renew, label %no
renew:
  %renewed = call i1 @quick(ptr %quick, i1 true)
  ret i1 true
no:
  ret i1 false
}

; What is looked at quickly: words of memory that are others after each change, such as a dict's version, and tensors.
;
; A row: 0 how many words   1 how many tensors   then where a tensor has what, as tensor_layout.py finds it: 2 the first
; word that counts of the Python object, which leads to C++'s object   3 how many count   4 and 5 so of C++'s object
; 6 its word that leads to the storage   7 the storage's word   8 the word that leads to what autograd has   9 the word there
; 10 factors, odd ones drawn by chance: a tensor's words times these make a sum, which is another one if one word
; changes, and if several do, but by chance of 1 in 2^63
; 11 addresses of words, each with the word; behind them tensors, each with its sum
;
; Gives whether all are as the row says; to renew it, it writes what they are into the row.
define internal i1 @quick(ptr %row, i1 %renew) #0 {
entry:
  %words = load i64, ptr %row
  %tensors.at = getelementptr i64, ptr %row, i64 1
  %tensors = load i64, ptr %tensors.at
  %pairs = add i64 %words, %tensors
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %next, %same ]
  %end = icmp eq i64 %n, %pairs
  br i1 %end, label %yes, label %look
look:
  %next = add i64 %n, 1
  %twice = shl i64 %n, 1
  %at = add i64 %twice, 11
  %what.at = getelementptr ptr, ptr %row, i64 %at
  %what = load ptr, ptr %what.at
  %then.at = getelementptr ptr, ptr %what.at, i64 1
  %then = load i64, ptr %then.at
  %is.word = icmp ult i64 %n, %words
  br i1 %is.word, label %word, label %tensor
word:
  %word.now = load i64, ptr %what
  br label %compare
tensor:
  %sum = call i64 @sum(ptr %row, ptr %what)
  br label %compare
compare:
  %now = phi i64 [ %word.now, %word ], [ %sum, %tensor ]
  br i1 %renew, label %write, label %check
write:
  store i64 %now, ptr %then.at
  br label %same
check:
  %equal = icmp eq i64 %now, %then
  br i1 %equal, label %same, label %no
same:
  br label %one
yes:
  ret i1 true
no:
  ret i1 false
}

; The sum of a tensor's words, for a row as above. What a word leads to is there as long as the object is.
define internal i64 @sum(ptr %row, ptr %tensor) #0 {
entry:
  %own.at = getelementptr i64, ptr %row, i64 2
  %own = load i64, ptr %own.at
  %own.count.at = getelementptr i64, ptr %row, i64 3
  %own.count = load i64, ptr %own.count.at
  %first.at = getelementptr i64, ptr %row, i64 4
  %first = load i64, ptr %first.at
  %count.at = getelementptr i64, ptr %row, i64 5
  %count = load i64, ptr %count.at
  %storage.at = getelementptr i64, ptr %row, i64 6
  %storage.word = load i64, ptr %storage.at
  %data.at = getelementptr i64, ptr %row, i64 7
  %data.word = load i64, ptr %data.at
  %autograd.at = getelementptr i64, ptr %row, i64 8
  %autograd.word = load i64, ptr %autograd.at
  %flag.at = getelementptr i64, ptr %row, i64 9
  %flag.word = load i64, ptr %flag.at
  %factors.at = getelementptr ptr, ptr %row, i64 10
  %factors = load ptr, ptr %factors.at
  %object = getelementptr i64, ptr %tensor, i64 %own
  %behind = load ptr, ptr %object
  %words = getelementptr i64, ptr %behind, i64 %first
  %object.sum = call i64 @product(ptr %object, ptr %factors, i64 %own.count)
  %factors.behind = getelementptr i64, ptr %factors, i64 %own.count
  %words.sum = call i64 @product(ptr %words, ptr %factors.behind, i64 %count)
  %factors.last = getelementptr i64, ptr %factors.behind, i64 %count
  %storage.link = getelementptr ptr, ptr %behind, i64 %storage.word
  %storage = load ptr, ptr %storage.link
  %data = call i64 @led(ptr %storage, i64 %data.word, ptr %factors.last)
  %factors.flag = getelementptr i64, ptr %factors.last, i64 1
  %autograd.link = getelementptr ptr, ptr %behind, i64 %autograd.word
  %autograd = load ptr, ptr %autograd.link
  %flag = call i64 @led(ptr %autograd, i64 %flag.word, ptr %factors.flag)
  %all = add i64 %object.sum, %words.sum
  %more = add i64 %data, %flag
  %sum = add i64 %all, %more
  ret i64 %sum
}

; A word of memory times a factor; 0 where there is no memory.
define internal i64 @led(ptr %memory, i64 %word, ptr %factor) #0 {
entry:
  %none = icmp eq ptr %memory, null
  br i1 %none, label %nothing, label %there
there:
  %at = getelementptr i64, ptr %memory, i64 %word
  %now = load i64, ptr %at
  %times = load i64, ptr %factor
  %product = mul i64 %now, %times
  ret i64 %product
nothing:
  ret i64 0
}

; The inner product of so many words.
define internal i64 @product(ptr %words, ptr %factors, i64 %count) #0 {
entry:
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %next, %more ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %more ]
  %end = icmp eq i64 %n, %count
  br i1 %end, label %summed, label %more
more:
  %next = add i64 %n, 1
  %word.at = getelementptr i64, ptr %words, i64 %n
  %word = load i64, ptr %word.at
  %factor.at = getelementptr i64, ptr %factors, i64 %n
  %factor = load i64, ptr %factor.at
  %times = mul i64 %word, %factor
  %sum.next = add i64 %sum, %times
  br label %one
summed:
  ret i64 %sum
}

; The entry that does not hold, by the number of its first word; -1 if all hold.
define internal i64 @changed(ptr %guard) #0 {
entry:
  %position = alloca i64
  %value = alloca ptr
  br label %look
look:
  %at = phi i64 [ 0, %entry ], [ %next, %holds ]
  %kind.at = getelementptr i64, ptr %guard, i64 %at
  %kind = load i64, ptr %kind.at
  %count.at = getelementptr i64, ptr %kind.at, i64 1
  %count = load i64, ptr %count.at
  %object.at = getelementptr i64, ptr %kind.at, i64 2
  %object = load ptr, ptr %object.at
  %key.at = getelementptr i64, ptr %kind.at, i64 3
  %key = load ptr, ptr %key.at
  %expected = getelementptr i64, ptr %kind.at, i64 4
  %first = load i64, ptr %expected
  %length = add i64 %count, 4
  %next = add i64 %at, %length
  switch i64 %kind, label %unchanged [
    i64 1, label %memory
    i64 2, label %dict
    i64 3, label %list
    i64 4, label %item
    i64 5, label %answer
    i64 6, label %bytes
  ]
holds:
  br label %look

memory:
  %m = phi i64 [ 0, %look ], [ %m.next, %memory.word ]
  %m.end = icmp eq i64 %m, %count
  br i1 %m.end, label %holds, label %memory.word
memory.word:
  %m.at = getelementptr i64, ptr %object, i64 %m
  %m.now = load i64, ptr %m.at
  %m.then.at = getelementptr i64, ptr %expected, i64 %m
  %m.then = load i64, ptr %m.then.at
  %m.next = add i64 %m, 1
  %m.same = icmp eq i64 %m.now, %m.then
  br i1 %m.same, label %memory, label %differs

dict:
  store i64 0, ptr %position
  br label %dict.entry
dict.entry:
  %d = phi i64 [ 0, %dict ], [ %d.next, %dict.value ]
  %d.more = call i32 @PyDict_Next(ptr %object, ptr %position, ptr null, ptr %value)
  %d.end = icmp eq i32 %d.more, 0
  %d.all = icmp eq i64 %d, %count
  br i1 %d.end, label %dict.end, label %dict.more
dict.end:
  br i1 %d.all, label %holds, label %differs
dict.more:
  br i1 %d.all, label %differs, label %dict.value
dict.value:
  %d.now = load i64, ptr %value
  %d.then.at = getelementptr i64, ptr %expected, i64 %d
  %d.then = load i64, ptr %d.then.at
  %d.next = add i64 %d, 1
  %d.equal = icmp eq i64 %d.now, %d.then
  %d.any = icmp eq i64 %d.then, 0
  %d.same = or i1 %d.equal, %d.any
  br i1 %d.same, label %dict.entry, label %differs

list:
  %l.size = call i64 @PyList_Size(ptr %object)
  %l.fits = icmp eq i64 %l.size, %count
  br i1 %l.fits, label %list.element, label %differs
list.element:
  %l = phi i64 [ 0, %list ], [ %l.next, %list.value ]
  %l.end = icmp eq i64 %l, %count
  br i1 %l.end, label %holds, label %list.value
list.value:
  %l.now = call i64 @PyList_GetItem(ptr %object, i64 %l)
  %l.then.at = getelementptr i64, ptr %expected, i64 %l
  %l.then = load i64, ptr %l.then.at
  %l.next = add i64 %l, 1
  %l.same = icmp eq i64 %l.now, %l.then
  br i1 %l.same, label %list.element, label %differs

item:
  %i.now = call i64 @PyDict_GetItem(ptr %object, ptr %key)
  %i.same = icmp eq i64 %i.now, %first
  br i1 %i.same, label %holds, label %differs

answer:
  %a.now = call ptr @PyObject_CallNoArgs(ptr %object)
  %a.failed = icmp eq ptr %a.now, null
  br i1 %a.failed, label %answer.failed, label %answered
answered:
  call void @Py_DecRef(ptr %a.now)
  %a.word = ptrtoint ptr %a.now to i64
  %a.same = icmp eq i64 %a.word, %first
  br i1 %a.same, label %holds, label %differs
answer.failed:
  call void @PyErr_Clear()
  br label %differs

bytes:
  %b.count = ptrtoint ptr %key to i64
  %b.whole = lshr i64 %b.count, 3
  br label %bytes.words
bytes.words:
  %b = phi i64 [ 0, %bytes ], [ %b.next, %bytes.word ]
  %b.end = icmp eq i64 %b, %b.whole
  br i1 %b.end, label %bytes.rest, label %bytes.word
bytes.word:
  %b.at = getelementptr i64, ptr %object, i64 %b
  %b.now = load i64, ptr %b.at, align 1
  %b.then.at = getelementptr i64, ptr %expected, i64 %b
  %b.then = load i64, ptr %b.then.at
  %b.next = add i64 %b, 1
  %b.same = icmp eq i64 %b.now, %b.then
  br i1 %b.same, label %bytes.words, label %differs
bytes.rest:
  %r.first = shl i64 %b.whole, 3
  br label %bytes.last
bytes.last:
  %r = phi i64 [ %r.first, %bytes.rest ], [ %r.next, %bytes.byte ]
  %r.end = icmp eq i64 %r, %b.count
  br i1 %r.end, label %holds, label %bytes.byte
bytes.byte:
  %r.at = getelementptr i8, ptr %object, i64 %r
  %r.now = load i8, ptr %r.at
  %r.then.at = getelementptr i8, ptr %expected, i64 %r
  %r.then = load i8, ptr %r.then.at
  %r.next = add i64 %r, 1
  %r.same = icmp eq i8 %r.now, %r.then
  br i1 %r.same, label %bytes.last, label %differs

differs:
  ret i64 %at
unchanged:
  ret i64 -1
}

; The largest distance of so many numbers from the lowest, without sign, but for those that are ignored; 0 of none.
define i64 @largest(ptr %data, i64 %count, i64 %lowest, i64 %ignored) #0 {
entry:
  %whole = and i64 %count, -8
  %one = insertelement <8 x i64> poison, i64 %ignored, i64 0
  %all = shufflevector <8 x i64> %one, <8 x i64> poison, <8 x i32> zeroinitializer
  %low.one = insertelement <8 x i64> poison, i64 %lowest, i64 0
  %low.all = shufflevector <8 x i64> %low.one, <8 x i64> poison, <8 x i32> zeroinitializer
  br label %lanes
lanes:
  %v = phi i64 [ 0, %entry ], [ %v.next, %lanes.more ]
  %most = phi <8 x i64> [ zeroinitializer, %entry ], [ %most.now, %lanes.more ]
  %lanes.end = icmp eq i64 %v, %whole
  br i1 %lanes.end, label %join, label %lanes.more
lanes.more:
  %v.at = getelementptr i64, ptr %data, i64 %v
  %v.now = load <8 x i64>, ptr %v.at, align 8
  %v.counts = icmp ne <8 x i64> %v.now, %all
  %v.far = sub <8 x i64> %v.now, %low.all
  %v.above = icmp ugt <8 x i64> %v.far, %most
  %v.larger = and <8 x i1> %v.counts, %v.above
  %most.now = select <8 x i1> %v.larger, <8 x i64> %v.far, <8 x i64> %most
  %v.next = add i64 %v, 8
  br label %lanes
join:
  %joined = call i64 @llvm.vector.reduce.umax.v8i64(<8 x i64> %most)
  br label %rest
rest:
  %r = phi i64 [ %whole, %join ], [ %r.next, %rest.more ]
  %largest = phi i64 [ %joined, %join ], [ %largest.now, %rest.more ]
  %rest.end = icmp eq i64 %r, %count
  br i1 %rest.end, label %end, label %rest.more
rest.more:
  %r.at = getelementptr i64, ptr %data, i64 %r
  %r.now = load i64, ptr %r.at
  %r.counts = icmp ne i64 %r.now, %ignored
  %r.far = sub i64 %r.now, %lowest
  %r.above = icmp ugt i64 %r.far, %largest
  %r.larger = and i1 %r.counts, %r.above
  %largest.now = select i1 %r.larger, i64 %r.far, i64 %largest
  %r.next = add i64 %r, 1
  br label %rest
end:
  ret i64 %largest
}

declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)
declare i64 @PyDict_GetItem(ptr, ptr)
declare i64 @PyList_Size(ptr)
declare i64 @PyList_GetItem(ptr, i64)
declare ptr @PyObject_CallNoArgs(ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.vector.reduce.umax.v8i64(<8 x i64>)
