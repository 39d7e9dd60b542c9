/* What a bundle's example uses of a C library, for programs that have none. */

#ifndef BARE_STDIO_H
#define BARE_STDIO_H

#ifdef PART /* of a program whose other part has a main: what is main here is called so there */

int printf(const char *format, ...);
void exit(int status);
#define main PART

#else

#include <stdarg.h>

#include "../system.h"

static char line[256];
static unsigned long filled;

static void put_character(char character) {
  line[filled++] = character;
  if (character == '\n' || filled == sizeof line - 1) {
    line[filled] = 0;
    put(line, filled);
    filled = 0;
  }
}

static void put_number(unsigned number, unsigned base, int width) {
  char digits[10];
  int count = 0;
  do {
    digits[count++] = "0123456789abcdef"[number % base];
    number /= base;
  } while (number);
  for (; width > count; width--) put_character('0');
  while (count) put_character(digits[--count]);
}

/* %s, and %u, %d (of what is not negative) and %x with zeros before them. */
int printf(const char *format, ...);
int printf(const char *format, ...) {
  va_list given;
  va_start(given, format);
  for (; *format; format++) {
    int width = 0;
    if (*format != '%') {
      put_character(*format);
      continue;
    }
    while (*++format == '*' || (*format >= '0' && *format <= '9'))
      width = *format == '*' ? va_arg(given, int) : 10 * width + *format - '0';
    if (*format == 's')
      for (const char *text = va_arg(given, const char *); *text; text++) put_character(*text);
    else
      put_number(va_arg(given, unsigned), *format == 'x' ? 16 : 10, width);
  }
  va_end(given);
  return 0;
}

void exit(int status);
void exit(int status) {
  (void)status;
  leave();
}

#define main example
int example(void);

ENTRY {
  example();
  leave();
}

#endif

#endif
