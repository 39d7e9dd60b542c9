"""Names of C's library, which no bundle has: what is declared under them, or included, would not be the bundle's.

A bundle's name is a namespace in C++, and what its header's file is called. With ``_init``, ``_get``, ``_read`` behind
it, it must be no function of the library either. Source: ISO C11, annex B, and POSIX.1-2017, index of names.
"""

from __future__ import annotations

import re

from glowtrain.bundles.faces.identifiers import word_set

_FLOATING = word_set(
    "acos acosh asin asinh atan atan2 atanh cabs cacos cacosh carg casin casinh catan catanh cbrt ccos ccosh ceil "
    "cexp cimag clog conj copysign cos cosh cpow cproj creal csin csinh csqrt ctan ctanh erf erfc exp exp2 expm1 fabs "
    "fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint "
    "lround modf nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn sin sinh sqrt tan "
    "tanh tgamma trunc"
)
"""With versions for float and long double."""
_FUNCTIONS = word_set(
    "a64l abort abs accept access alarm aligned_alloc alloca alphasort asctime assert at_quick_exit atexit atof atoi "
    "atol atoll basename bind bsearch btowc c16rtomb c32rtomb call_once calloc catclose catgets catopen cfgetispeed "
    "cfgetospeed cfsetispeed cfsetospeed chdir chmod chown clearerr clock clock_getcpuclockid clock_getres "
    "clock_gettime clock_nanosleep clock_settime close closedir closelog complex confstr connect creat ctermid ctime "
    "difftime dirfd dirname div dlclose dlerror dlopen dlsym dprintf drand48 dup dup2 duplocale endgrent endhostent "
    "endnetent endprotoent endpwent endservent endutxent erand48 errno execl execle execlp execv execve execvp exit "
    "faccessat fchdir fchmod fchmodat fchown fchownat fclose fcntl fdatasync fdopen fdopendir feclearexcept fegetenv "
    "fegetexceptflag fegetround feholdexcept feof feraiseexcept ferror fesetenv fesetexceptflag fesetround "
    "fetestexcept feupdateenv fexecve fflush ffs fgetc fgetpos fgets fgetwc fgetws fileno flockfile fmemopen fmtmsg "
    "fnmatch fopen fork fpathconf fpclassify fprintf fputc fputs fputwc fputws fread free freeaddrinfo freelocale "
    "freopen fscanf fseek fseeko fsetpos fstat fstatat fstatvfs fsync ftell ftello ftok ftruncate ftrylockfile ftw "
    "funlockfile futimens fwide fwprintf fwrite fwscanf gai_strerror getaddrinfo getc getchar getcwd getdate getdelim "
    "getegid getenv geteuid getgid getgrent getgrgid getgrnam getgroups gethostbyaddr gethostbyname gethostent "
    "gethostid gethostname getitimer getline getlogin getnameinfo getnetbyaddr getnetbyname getnetent getopt "
    "getpeername getpgid getpgrp getpid getppid getpriority getprotobyname getprotobynumber getprotoent getpwent "
    "getpwnam getpwuid getrlimit getrusage getservbyname getservbyport getservent getsid getsockname getsockopt "
    "getsubopt gettimeofday getuid getutxent getutxid getutxline getwc getwchar glob globfree gmtime grantpt hcreate "
    "hdestroy hsearch htonl htons iconv iconv_close iconv_open if_freenameindex if_indextoname if_nameindex "
    "if_nametoindex imaxabs imaxdiv inet_addr inet_lnaof inet_makeaddr inet_netof inet_network inet_ntoa inet_ntop "
    "inet_pton initstate insque isalnum isalpha isascii isatty isblank iscntrl isdigit isfinite isgraph isgreater "
    "isgreaterequal isinf isless islessequal islessgreater islower isnan isnormal isprint ispunct isspace isunordered "
    "isupper iswalnum iswalpha iswblank iswcntrl iswctype iswdigit iswgraph iswlower iswprint iswpunct iswspace "
    "iswupper iswxdigit isxdigit j0 j1 jn jrand48 kill kill_dependency killpg l64a labs lchown lcong48 ldiv lfind "
    "link linkat lio_listio listen llabs lldiv localeconv localtime lockf longjmp lrand48 lsearch lseek lstat "
    "mallinfo mallinfo2 malloc malloc_info malloc_stats malloc_trim malloc_usable_size mallopt math_errhandling mblen "
    "mbrlen mbrtoc16 mbrtoc32 mbrtowc mbsinit mbsnrtowcs mbsrtowcs mbstowcs mbtowc memalign memccpy memchr memcmp "
    "memcpy memmove memset mkdir mkdirat mkdtemp mkfifo mkfifoat mknod mknodat mkstemp mktime mlock mlockall mmap "
    "mprotect mrand48 msgctl msgget msgrcv msgsnd msync munlock munlockall munmap nanosleep newlocale nftw nice "
    "nl_langinfo nrand48 ntohl ntohs offsetof open open_memstream open_wmemstream openat opendir openlog pathconf "
    "pause pclose perror pipe poll popen pread printf pselect psiginfo psignal ptsname putc putchar putenv puts "
    "pututxline putwc putwchar pvalloc pwrite qsort quick_exit raise rand random read readdir readlink readlinkat "
    "readv realloc reallocarray realpath recv recvfrom recvmsg regcomp regerror regexec regfree remove remque rename "
    "renameat rewind rewinddir rmdir scandir scanf seed48 seekdir select semctl semget semop send sendmsg sendto "
    "setbuf setegid setenv seteuid setgid setgrent sethostent setitimer setjmp setlocale setlogmask setnetent setpgid "
    "setpgrp setpriority setprotoent setpwent setregid setreuid setrlimit setservent setsid setsockopt setstate "
    "setuid setutxent setvbuf shm_open shm_unlink shmat shmctl shmdt shmget shutdown sigaction sigaddset sigaltstack "
    "sigdelset sigemptyset sigfillset sighold sigignore siginterrupt sigismember siglongjmp signal signbit sigpause "
    "sigpending sigprocmask sigqueue sigrelse sigset sigsetjmp sigsuspend sigtimedwait sigwait sigwaitinfo sleep "
    "snprintf sockatmark socket socketpair sprintf srand srand48 srandom sscanf stat statvfs stderr stdin stdout "
    "stpcpy stpncpy strcasecmp strcat strchr strcmp strcoll strcpy strcspn strdup strerror strfmon strftime strlen "
    "strncasecmp strncat strncmp strncpy strndup strnlen strpbrk strptime strrchr strsignal strspn strstr strtod "
    "strtof strtoimax strtok strtol strtold strtoll strtoul strtoull strtoumax strxfrm swab swprintf swscanf symlink "
    "symlinkat sync sysconf syslog system tcdrain tcflow tcflush tcgetattr tcgetpgrp tcgetsid tcsendbreak tcsetattr "
    "tcsetpgrp tdelete telldir tempnam tfind time timer_create timer_delete timer_getoverrun timer_gettime "
    "timer_settime times timespec_get tmpfile tmpnam toascii tolower toupper towctrans towlower towupper truncate "
    "tsearch ttyname twalk tzset ulimit umask uname ungetc ungetwc unlink unlinkat unlockpt unsetenv uselocale utime "
    "utimensat utimes va_arg va_copy va_end va_start valloc vdprintf vfprintf vfscanf vfwprintf vfwscanf vprintf "
    "vscanf vsnprintf vsprintf vsscanf vswprintf vswscanf vwprintf vwscanf wait waitid waitpid wcpcpy wcpncpy wcrtomb "
    "wcscasecmp wcscat wcschr wcscmp wcscoll wcscpy wcscspn wcsdup wcsftime wcslen wcsncasecmp wcsncat wcsncmp "
    "wcsncpy wcsnlen wcsnrtombs wcspbrk wcsrchr wcsrtombs wcsspn wcsstr wcstod wcstof wcstoimax wcstok wcstol wcstold "
    "wcstoll wcstombs wcstoul wcstoull wcstoumax wcswcs wcswidth wcsxfrm wctob wctomb wctrans wctype wcwidth wmemchr "
    "wmemcmp wmemcpy wmemmove wmemset wordexp wordfree wprintf write writev wscanf y0 y1 yn"
)
_OBJECTS = word_set(
    "DIR FILE clock_t daylight dev_t dirent div div_t environ fd_set fenv flock fpos_t gid_t group hostent id_t ino_t "
    "iovec itimerval jmp_buf key_t lconv ldiv_t lldiv_t max_align_t mbstate_t mode_t msghdr netent nullptr_t off_t "
    "optarg opterr optind option optopt passwd pid_t pollfd protoent ptrdiff_t rlimit rusage servent sig_atomic_t "
    "sigaction sigevent signgam sigset_t size_t sockaddr spwd ssize_t stat statvfs stderr stdin stdout termios time_t "
    "timespec timeval timezone tm tms tzname uid_t utimbuf utmpx utsname va_list wchar_t wctrans_t wctype_t wint_t"
)
"""Variables, structures and types."""
MACROS = word_set(
    "BUFSIZ EDOM EILSEQ EOF ERANGE EXIT_FAILURE EXIT_SUCCESS FLT_MAX HUGE_VAL I INFINITY INT_MAX INT_MIN LC_ALL "
    "LONG_MAX LONG_MIN NAN NDEBUG NULL PATH_MAX RAND_MAX SIGINT SIGTERM UINT_MAX errno i386 linux unix "
    "stdin stdout stderr L_ctermid L_cuserid L_tmpnam P_tmpdir"
)
"""Macros that are not called, with those that compilers define for Unix: no parameter is called so either."""
_HEADERS = word_set(
    "aio alloca assert complex ctype dirent dlfcn errno fcntl fenv float ftw getopt glob grp iconv inttypes iso646 "
    "langinfo libgen limits locale malloc math memory mqueue netdb poll pthread pwd regex sched search semaphore "
    "setjmp signal spawn stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings "
    "syslog termios tgmath threads time uchar ulimit unistd utime wchar wctype wordexp "
    "Availability AvailabilityInternal AvailabilityInternalLegacy AvailabilityMacros AvailabilityVersions "
    "TargetConditionals corecrt crtdefs endian features gethostuuid io libintl mm_malloc newlib nl_types process "
    "syslimits vadefs"
)
"""Headers of the library, and those that they include themselves, from whatever folder ``-I`` names first."""
_LINKED = word_set("c dl gcc gcc_eh gcc_s m pthread rt util")
"""Libraries that compilers link by ``-lNAME``, for which they would take ``libNAME.a``."""
_STEMS = word_set("aio atomic cnd malloc_usable mtx sem timespec tss") | word_set("f mm r w x")
"""What is a name of the library with an ending of ours: ``sem_init``, ``aio_read``, and in capitals ``F_OK``."""
_NAMES = _FUNCTIONS | _FLOATING | _OBJECTS | MACROS | _HEADERS | _LINKED | _STEMS
_FAMILIES = re.compile(r"(atomic|posix|pthread)_\w*|u?int(_least|_fast)?\d+_t|u?int(max|ptr)_t")


def is_reserved(name: str) -> bool:
    """Whether a name is one of C's library, or would become one."""
    stem = re.sub(r"_(l|r|unlocked)$", "", name)
    single = name[:-1] if name[-1:] in ("f", "l") else ""
    return bool(stem in _NAMES or single in _FLOATING or name.lower() in _STEMS or _FAMILIES.fullmatch(name))
