# Stands where a PC's BIOS would: calls in 64-bit mode with every vector register enabled.
#
# RAM from JOB on is read from the first disk: SECTORS of it. It begins with a list of calls, each nine numbers of 64
# bits: a function, its six arguments, where its results are and how many bytes. These are written to the disk, behind
# what was read, each call's from a new sector on. After the last call, where the function is 0, and after a fault the PC
# is switched off. The first number on the disk is then 0, or the address of the instruction at fault.

.set JOB, 0x100000
.set STACK, 0x90000         # aligned; grows down
.set TABLES, 0x1000         # of pages: three times 4 KiB
.set HERE, 0xF0000          # this code is linked to where it is seen below 1 MiB
.set CODE64, 8
.set CODE32, 16
.set DATA, 24

.code16
start:
    cli
    lgdtl %cs:table_at - HERE
    mov %cr0, %eax
    or $1, %al
    mov %eax, %cr0
    ljmpl $CODE32, $wide

.code32
wide:
    mov $DATA, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    cld
    mov $TABLES, %edi
    xor %eax, %eax
    mov $0xC00, %ecx
    rep stosl
    movl $TABLES + 0x1003, TABLES
    movl $TABLES + 0x2003, TABLES + 0x1000
    mov $TABLES + 0x2000, %edi
    mov $0x83, %eax
page:                       # 1 GiB in pages of 2 MiB, each at its own address
    mov %eax, (%edi)
    add $8, %edi
    add $0x200000, %eax
    cmp $0x40000000, %eax
    jb page
    mov $TABLES, %eax
    mov %eax, %cr3
    mov $0x40620, %eax      # 64-bit page entries, SSE and its exceptions, XSAVE
    mov %eax, %cr4
    mov $0xC0000080, %ecx
    rdmsr
    or $0x100, %eax         # long mode
    wrmsr
    mov $0x80000003, %eax   # paging and protection; nothing is emulated or switched lazily
    mov %eax, %cr0
    ljmp $CODE64, $long

.code64
long:
    mov $0xD, %eax
    xor %ecx, %ecx
    cpuid                   # the registers that this processor has
    and $0xE7, %eax         # of these x87, SSE, AVX and the three parts of AVX-512
    xor %ecx, %ecx
    xor %edx, %edx
    xsetbv
    lidt faults_at(%rip)
    mov $STACK, %esp
    xor %ebp, %ebp          # sector; functions keep this register and the next
    mov $JOB, %edi
    mov $0x20, %bl          # read
in:
    call order
    rep insl
    cmp $SECTORS, %ebp
    jne in
    mov $JOB, %ebx
call:
    mov 8(%rbx), %rdi
    mov 16(%rbx), %rsi
    mov 24(%rbx), %rdx
    mov 32(%rbx), %rcx
    mov 40(%rbx), %r8
    mov 48(%rbx), %r9
    call *(%rbx)
    cld
    mov 56(%rbx), %rsi
    mov 64(%rbx), %rdi
    add %rsi, %rdi          # where they end
    push %rbx
    mov $0x30, %bl          # write
out:
    call order
    rep outsl
    cmp %rdi, %rsi
    jb out
    pop %rbx
    add $72, %rbx
    cmpq $0, (%rbx)
    jne call
    xor %eax, %eax
end:
    mov %rax, JOB
    cld
    xor %ebp, %ebp
    mov $0x30, %bl
    mov $JOB, %esi
    call order
    rep outsl
    mov $0x8900, %edx       # Bochs ends when it is told this word here
    lea word(%rip), %rsi
    mov $8, %ecx
    rep outsb
    hlt

fault:                      # the address is on the stack, below the code segment and, for some, above an error's number
    mov (%rsp), %rax
    cmpq $CODE64, 8(%rsp)
    je end
    mov 8(%rsp), %rax
    jmp end

order:                      # a command to the disk (ATA, registers from 0x1F0 on) for one sector, and on to the next
    mov $0x1F7, %edx
busy:
    in %dx, %al
    test %al, %al
    js busy
    mov $0x1F2, %edx
    mov $1, %al
    out %al, %dx
    mov %ebp, %eax          # 28 bits in four registers
    inc %edx
    out %al, %dx
    shr $8, %eax
    inc %edx
    out %al, %dx
    shr $8, %eax
    inc %edx
    out %al, %dx
    mov %ah, %al
    or $0xE0, %al
    inc %edx
    out %al, %dx
    mov %bl, %al
    inc %edx
    out %al, %dx
data:
    in %dx, %al
    and $0x88, %al          # busy, and ready for data
    cmp $0x08, %al
    jne data
    inc %ebp
    mov $0x1F0, %edx
    mov $128, %ecx
    ret

word:
    .ascii "Shutdown"
.balign 8
table:                      # of segments
    .quad 0, 0x00AF9A000000FFFF, 0x00CF9A000000FFFF, 0x00CF92000000FFFF
table_at:
    .word 31
    .long table
.balign 8
faults:                     # all 32 of them
    .rept 32
    .word fault - HERE, CODE64, 0x8E00, HERE >> 16
    .quad 0
    .endr
faults_at:
    .word 511
    .quad faults

.org 0xFFF0
    .code16
    ljmp $0xF000, $start - HERE
.org 0x10000
