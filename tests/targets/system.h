/* What a program without a C library needs of the system below: put a text, and end. */

#if defined(__wasm__)

__attribute__((import_module("env"), import_name("put"))) void put(const char *text, unsigned long length);
static void leave(void) {}
#define ENTRY __attribute__((export_name("run"))) void run(void)

#elif defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'

/* Semihosting: SYS_WRITE0 takes a text that ends with 0, SYS_EXIT the reason. */
static void ask(int what, const void *argument) {
  register int r0 __asm__("r0") = what;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
static void put(const char *text, unsigned long length) { (void)length, ask(4, text); }
static void leave(void) { ask(0x18, (const void *)0x20026); }

void begin(void);
extern char stack_top[];

__attribute__((naked)) void reset(void) { /* the floating-point unit is off at first: CPACR */
  __asm__ volatile(
      "movw r0, #0xed88\n movt r0, #0xe000\n ldr r1, [r0]\n orr r1, r1, #0xf00000\n str r1, [r0]\n dsb\n isb\n bl begin\n b .\n");
}
static void stuck(void) {
  put("fault\n", 6);
  leave();
}
__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (void *)reset, (void *)stuck, (void *)stuck, (void *)stuck, (void *)stuck, (void *)stuck};
#define ENTRY void begin(void)

#else /* Linux's system calls write and exit */

#if defined(__x86_64__)
#define WRITE 1
#define EXIT 60
static long call(long number, long a, const void *b, unsigned long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
#elif defined(__aarch64__)
#define WRITE 64
#define EXIT 93
static long call(long number, long a, const void *b, unsigned long c) {
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a;
  register const void *x1 __asm__("x1") = b;
  register unsigned long x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}
#elif defined(__riscv)
#define WRITE 64
#define EXIT 93
static long call(long number, long a, const void *b, unsigned long c) {
  register long a7 __asm__("a7") = number, a0 __asm__("a0") = a;
  register const void *a1 __asm__("a1") = b;
  register unsigned long a2 __asm__("a2") = c;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2) : "memory");
  return a0;
}
#elif defined(__arm__)
#define WRITE 4
#define EXIT 1
static long call(long number, long a, const void *b, unsigned long c) {
  register long r7 __asm__("r7") = number, r0 __asm__("r0") = a;
  register const void *r1 __asm__("r1") = b;
  register unsigned long r2 __asm__("r2") = c;
  __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
  return r0;
}
#endif

static void put(const char *text, unsigned long length) { call(WRITE, 1, text, length); }
static void leave(void) { call(EXIT, 0, 0, 0); }

#if defined(__x86_64__)
#define ENTRY __attribute__((force_align_arg_pointer)) void _start(void)
#else
#define ENTRY void _start(void)
#endif

#endif
