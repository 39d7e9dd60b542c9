; The arguments of a call: whether they are those that a step was compiled for, and where their elements lie.
;
; An argument is a row of words: 0 how many   1 the type of a tensor, or any other object   2 whether it is a tensor
; 3 cell of the step's table   4 bytes of an element   5 bytes of all   6 memory for a row-major copy, if it needs one
; 7 axes   8 whether these are indices, from 9 on, 10 that many more at most, or 11
; 12 how many words are looked at, then for each its number, which bits of it, and these, then extents, then strides
; The numbers of a call's own words are in call.ll.

; Whether arguments are those that the step was compiled for; the table then points to them.
define internal i1 @batch.fits(ptr %call, ptr %arguments) #0 {
entry:
  %count = call i64 @word(ptr %call, i64 0)
  %first = call ptr @link(ptr %call, i64 4)
  br label %one
one:
  %n = phi i64 [ 0, %entry ], [ %next, %placed ]
  %argument = phi ptr [ %first, %entry ], [ %following, %placed ]
  %all = icmp eq i64 %n, %count
  br i1 %all, label %yes, label %look
look:
  %given = call ptr @link(ptr %arguments, i64 %n)
  %next = add i64 %n, 1
  %length = call i64 @word(ptr %argument, i64 0)
  %following = getelementptr i64, ptr %argument, i64 %length
  %expected = call ptr @link(ptr %argument, i64 1)
  %is.tensor = call i64 @word(ptr %argument, i64 2)
  %other = icmp eq i64 %is.tensor, 0
  br i1 %other, label %object, label %tensor
object:
  %same = icmp eq ptr %given, %expected
  br i1 %same, label %placed, label %no
tensor:
  %type.at = call i64 @word(ptr %call, i64 22)
  %type = call ptr @link(ptr %given, i64 %type.at)
  %is = icmp eq ptr %type, %expected
  br i1 %is, label %place, label %no
place:
  %fits = call i1 @tensor.fits(ptr %call, ptr %argument, ptr %given)
  br i1 %fits, label %placed, label %no
placed:
  br label %one
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @tensor.fits(ptr %call, ptr %argument, ptr %tensor) #0 {
entry:
  %behind.at = call i64 @word(ptr %call, i64 23)
  %behind = call ptr @link(ptr %tensor, i64 %behind.at)
  %words = getelementptr i64, ptr %argument, i64 13
  %count = call i64 @word(ptr %argument, i64 12)
  br label %word
word:
  %n = phi i64 [ 0, %entry ], [ %n.next, %compare ]
  %all = icmp eq i64 %n, %count
  br i1 %all, label %detached, label %compare
compare:
  %one.at = mul i64 %n, 3
  %one = getelementptr i64, ptr %words, i64 %one.at
  %number = call i64 @word(ptr %one, i64 0)
  %mask = call i64 @word(ptr %one, i64 1)
  %bits = call i64 @word(ptr %one, i64 2)
  %now = call i64 @word(ptr %behind, i64 %number)
  %now.bits = and i64 %now, %mask
  %n.next = add i64 %n, 1
  %same = icmp eq i64 %now.bits, %bits
  br i1 %same, label %word, label %no
detached:
  %autograd.at = call i64 @word(ptr %call, i64 26)
  %autograd = call ptr @link(ptr %behind, i64 %autograd.at)
  %none = icmp eq ptr %autograd, null
  br i1 %none, label %take, label %ask
ask: ; views have something there, too
  %without = call i1 @without.gradient(ptr %call, ptr %tensor)
  br i1 %without, label %take, label %no
take:
  %elements = call ptr @elements(ptr %call, ptr %argument, ptr %behind)
  %lost = icmp eq ptr %elements, null
  br i1 %lost, label %no, label %bounds
bounds:
  %are.indices = call i64 @word(ptr %argument, i64 8)
  %unbounded = icmp eq i64 %are.indices, 0
  br i1 %unbounded, label %yes, label %measure
measure:
  %bytes = call i64 @word(ptr %argument, i64 5)
  %indices = lshr i64 %bytes, 3
  %low = call i64 @word(ptr %argument, i64 9)
  %range = call i64 @word(ptr %argument, i64 10)
  %ignored = call i64 @word(ptr %argument, i64 11)
  %largest = call i64 @largest(ptr %elements, i64 %indices, i64 %low, i64 %ignored)
  %within = icmp ule i64 %largest, %range
  br i1 %within, label %yes, label %no
yes:
  %cell = call ptr @link(ptr %argument, i64 3)
  store ptr %elements, ptr %cell
  ret i1 true
no:
  ret i1 false
}

define internal i1 @without.gradient(ptr %call, ptr %tensor) #0 {
entry:
  %name = call ptr @link(ptr %call, i64 19)
  %answer = call ptr @PyObject_GetAttr(ptr %tensor, ptr %name)
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %clear, label %compare
clear:
  call void @PyErr_Clear()
  ret i1 false
compare:
  call void @Py_DecRef(ptr %answer)
  %false = call ptr @link(ptr %call, i64 18)
  %without = icmp eq ptr %answer, %false
  ret i1 %without
}

; Where an argument's elements lie row-major, the copy where they do not; null if that is where the step writes, or if
; there are elements, but no memory.
define internal ptr @elements(ptr %call, ptr %argument, ptr %behind) #0 {
entry:
  %storage.at = call i64 @word(ptr %call, i64 24)
  %storage = call ptr @link(ptr %behind, i64 %storage.at)
  %data.at = call i64 @word(ptr %call, i64 27)
  %data = call ptr @link(ptr %storage, i64 %data.at)
  %bytes = call i64 @word(ptr %argument, i64 5)
  %empty = icmp eq i64 %bytes, 0
  %allocated = icmp ne ptr %data, null
  %there = or i1 %empty, %allocated
  br i1 %there, label %find, label %lost
lost:
  ret ptr null
find:
  %offset.at = call i64 @word(ptr %call, i64 25)
  %offset = call i64 @word(ptr %behind, i64 %offset.at)
  %size = call i64 @word(ptr %argument, i64 4)
  %ahead = mul i64 %offset, %size
  %first = getelementptr i8, ptr %data, i64 %ahead
  %copy = call ptr @link(ptr %argument, i64 6)
  %row.major = icmp eq ptr %copy, null
  br i1 %row.major, label %apart, label %strided
apart:
  %written = call ptr @link(ptr %call, i64 7)
  %meets = call i1 @meets(ptr %written, ptr %first, i64 %bytes)
  %place = select i1 %meets, ptr null, ptr %first
  ret ptr %place
strided:
  %axes = call i64 @word(ptr %argument, i64 7)
  %looked.at = call i64 @word(ptr %argument, i64 12)
  %words = mul i64 %looked.at, 3
  %behind.words = add i64 %words, 13
  %extents = getelementptr i64, ptr %argument, i64 %behind.words
  %strides = getelementptr i64, ptr %extents, i64 %axes
  %end = call ptr @copied(ptr %copy, ptr %first, i64 %axes, ptr %extents, ptr %strides, i64 %size)
  ret ptr %copy
}

; Whether bytes lie in one of some spans: their number, then first addresses and those behind the last.
define internal i1 @meets(ptr %spans, ptr %memory, i64 %bytes) #0 {
entry:
  %first = ptrtoint ptr %memory to i64
  %end = add i64 %first, %bytes
  %count = call i64 @word(ptr %spans, i64 0)
  br label %span
span:
  %n = phi i64 [ 0, %entry ], [ %next, %look ]
  %all = icmp eq i64 %n, %count
  br i1 %all, label %no, label %look
look:
  %next = add i64 %n, 1
  %twice = shl i64 %n, 1
  %first.at = add i64 %twice, 1
  %its.first = call i64 @word(ptr %spans, i64 %first.at)
  %end.at = add i64 %twice, 2
  %its.end = call i64 @word(ptr %spans, i64 %end.at)
  %before = icmp ult i64 %first, %its.end
  %behind = icmp ugt i64 %end, %its.first
  %meets = and i1 %before, %behind
  br i1 %meets, label %yes, label %span
no:
  ret i1 false
yes:
  ret i1 true
}

; Copy elements of 1, 2, 4 or 8 bytes, row-major; where the next would go.
define internal ptr @copied(ptr %to, ptr %from, i64 %axes, ptr %extents, ptr %strides, i64 %size) #0 {
entry:
  %none = icmp eq i64 %axes, 0
  br i1 %none, label %element, label %axis
axis:
  %extent = load i64, ptr %extents
  %stride = load i64, ptr %strides
  %step = mul i64 %stride, %size
  %fewer = sub i64 %axes, 1
  %inner.extents = getelementptr i64, ptr %extents, i64 1
  %inner.strides = getelementptr i64, ptr %strides, i64 1
  br label %row
row:
  %n = phi i64 [ 0, %axis ], [ %next, %copy ]
  %place = phi ptr [ %to, %axis ], [ %behind, %copy ]
  %source = phi ptr [ %from, %axis ], [ %source.next, %copy ]
  %all = icmp eq i64 %n, %extent
  br i1 %all, label %end, label %copy
copy:
  %behind = call ptr @copied(ptr %place, ptr %source, i64 %fewer, ptr %inner.extents, ptr %inner.strides, i64 %size)
  %source.next = getelementptr i8, ptr %source, i64 %step
  %next = add i64 %n, 1
  br label %row
end:
  ret ptr %place
element:
  %after = getelementptr i8, ptr %to, i64 %size
  switch i64 %size, label %eight [
    i64 1, label %one
    i64 2, label %two
    i64 4, label %four
  ]
one:
  %byte = load i8, ptr %from
  store i8 %byte, ptr %to
  ret ptr %after
two:
  %half = load i16, ptr %from, align 1
  store i16 %half, ptr %to, align 1
  ret ptr %after
four:
  %single = load i32, ptr %from, align 1
  store i32 %single, ptr %to, align 1
  ret ptr %after
eight:
  %double = load i64, ptr %from, align 1
  store i64 %double, ptr %to, align 1
  ret ptr %after
}

declare ptr @PyObject_GetAttr(ptr, ptr)
