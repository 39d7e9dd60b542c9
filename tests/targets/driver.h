/* Runs steps, each over memory of its own, and puts what their results hold: for each a line of its name and bytes. */

#include "system.h"

typedef unsigned char byte;

static void put_hex(const byte *bytes, unsigned long count) {
  static const char digits[] = "0123456789abcdef";
  char line[129];
  while (count) {
    unsigned long now = count < 64 ? count : 64, at = 0;
    for (; at < now; at++) {
      line[2 * at] = digits[bytes[at] >> 4];
      line[2 * at + 1] = digits[bytes[at] & 15];
    }
    line[2 * now] = 0;
    put(line, 2 * now);
    bytes += now, count -= now;
  }
}

static void put_text(const char *text) {
  unsigned long length = 0;
  while (text[length]) length++;
  put(text, length);
}

static void put_result(const char *name, const byte *bytes, unsigned long count) {
  put_text(name), put_text(" "), put_hex(bytes, count), put_text("\n");
}
