/* Where the body of an HTTP/1.1 response ends (RFC 9112): incremental, strict, without memory of its own.
 * The same rules, limits and errors as replay/http1.py; tests/replay/test_native.py plays the same bytes through both. */
#ifndef PDD_FRAMING_H
#define PDD_FRAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MAX_LINE_BYTES = 16 << 10, MAX_SIZE_DIGITS = 15 };
enum { UNTIL_CLOSE, COUNTED, CHUNKED };                                    /* how a body is delimited */
enum { LINE_TOO_LONG = -1, CHUNK_TOO_LONG = -2, SIZE_MALFORMED = -3 };     /* what is wrong with it */
enum { AT_SIZE, AT_DATA, AT_DATA_END, AT_TRAILER };
enum { IN_DIGITS, IN_BLANKS, IN_EXTENSION, IN_CR, IN_NOTHING };            /* of a size line */

typedef struct {
    int kind, at, part, digits;
    int wrong;        /* this line of framing is malformed; said when it is complete */
    int done, surplus;
    int last;         /* the line's last byte so far */
    int64_t left;     /* bytes of a chunk, or of a counted body, that have not come */
    int64_t size;
    uint32_t line;    /* bytes of the line so far */
} Framing;

static void framing_begin(Framing *f, int kind, int64_t length) {
    memset(f, 0, sizeof *f);
    f->kind = kind;
    f->left = length;
    f->done = kind == COUNTED && length == 0;
}

static int hex_digit(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* One byte of `SIZE [blanks] [; extension] CR`; anything else spoils the line. */
static void framing_size_byte(Framing *f, uint8_t byte) {
    int digit = f->part == IN_DIGITS ? hex_digit(byte) : -1;
    if (f->part == IN_CR || f->part == IN_NOTHING) {
        f->part = IN_NOTHING;
    } else if (digit >= 0) {
        if (++f->digits > MAX_SIZE_DIGITS) f->part = IN_NOTHING;
        else f->size = f->size << 4 | digit;
    } else if (!f->digits) {
        f->part = IN_NOTHING;
    } else if (byte == '\r') {
        f->part = IN_CR;
    } else if (f->part == IN_EXTENSION) {
    } else if (byte == ';') {
        f->part = IN_EXTENSION;
    } else {
        f->part = byte == ' ' || byte == '\t' ? IN_BLANKS : IN_NOTHING;
    }
    if (f->part == IN_NOTHING) f->wrong = 1;
}

/* A line of framing is complete. Returns 0 or what is wrong. */
static int framing_line(Framing *f) {
    int empty = f->line == 2 && f->last == '\r';
    switch (f->at) {
    case AT_SIZE:
        if (f->wrong || f->part != IN_CR) return SIZE_MALFORMED;
        f->left = f->size;
        f->at = f->left ? AT_DATA : AT_TRAILER;
        break;
    case AT_DATA_END:
        if (!empty) return CHUNK_TOO_LONG;
        f->at = AT_SIZE;
        break;
    default:
        f->done = empty;
    }
    f->line = 0;
    f->wrong = f->digits = f->last = 0;
    f->size = 0;
    f->part = IN_DIGITS;
    return 0;
}

/* Bytes of the message in `data`, copied to `out` (room for n); returns their number, or what is wrong with them. */
static int64_t framing_feed(Framing *f, const uint8_t *data, size_t n, uint8_t *out) {
    size_t i = 0, made = 0;
    if (f->kind != CHUNKED) {
        made = f->kind == COUNTED && (uint64_t)f->left < n ? (size_t)f->left : n;
        memcpy(out, data, made);
        if (f->kind == UNTIL_CLOSE) return (int64_t)made;
        f->left -= (int64_t)made;
        f->done = !f->left;
        f->surplus = made < n;
        return (int64_t)made;
    }
    while (i < n && !f->done) {
        if (f->at == AT_DATA) {
            size_t piece = (uint64_t)f->left < n - i ? (size_t)f->left : n - i;
            memcpy(out + made, data + i, piece);
            made += piece;
            i += piece;
            f->left -= (int64_t)piece;
            if (!f->left) f->at = AT_DATA_END;
            continue;
        }
        uint8_t byte = data[i++];
        if (++f->line > MAX_LINE_BYTES) return LINE_TOO_LONG;
        if (byte == '\n') {
            int wrong = framing_line(f);
            if (wrong) return wrong;
            continue;
        }
        if (f->at == AT_SIZE) framing_size_byte(f, byte);
        f->last = byte;
    }
    f->surplus = i < n;
    return (int64_t)made;
}

#endif
