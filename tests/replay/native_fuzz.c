/* The reader under sanitizers, with hostile peers: compiled by tests/replay/test_native.py together with reader.c.
 * native_fuzz SEED ROUNDS. A thread plays servers on socket pairs and writes random answers, well framed or not, cut anywhere;
 * the main thread does what Python does. Whatever comes, there must be no fault, no leak, and good answers must be whole. */
#include <stdio.h>

#include "reader.c"

enum { CONNS = 24, MOST = 200000 };

static uint64_t state;

static uint32_t any(uint32_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return below ? (uint32_t)(state >> 33) % below : 0;
}

typedef struct { int ours, theirs, slot, kind, good, ended; int64_t length, head; uint8_t *bytes; size_t n, at, body;
                 uint8_t *request; size_t asked, left; } Play;

static size_t number(uint8_t *to, const char *format, unsigned long value) { return (size_t)sprintf((char *)to, format, value); }

/* An answer: a head, then a body of the kind; every third is spoilt somewhere. */
static void compose(Play *p) {
    p->bytes = malloc(MOST + 70000);
    p->n = number(p->bytes, "HTTP/1.1 200 OK\r\nX: %lu\r\n\r\n", any(1000));
    p->head = (int64_t)p->n;
    p->kind = (int)any(3);
    p->good = any(3) != 0;
    size_t body = any(8) ? any(3000) : any(MOST / 2), start = p->n;
    p->length = (int64_t)body;
    p->body = body;
    for (size_t left = body; p->kind == CHUNKED && left;) {
        size_t piece = 1 + any((uint32_t)(left < 400 ? left : 400));
        p->n += number(p->bytes + p->n, any(2) ? "%lx" : "%lX", piece);
        p->n += (size_t)sprintf((char *)p->bytes + p->n, "%s\r\n", any(4) ? "" : any(2) ? " " : ";a=b");
        for (size_t i = 0; i < piece; i++) p->bytes[p->n++] = any(5) ? 'x' : '\n';
        p->bytes[p->n++] = '\r';
        p->bytes[p->n++] = '\n';
        left -= piece;
    }
    if (p->kind == CHUNKED) p->n += (size_t)sprintf((char *)p->bytes + p->n, "0\r\n%s\r\n", any(3) ? "" : "T: 1\r\n");
    else for (size_t i = 0; i < body; i++) p->bytes[p->n++] = any(5) ? 'y' : '\n';
    if (!p->good) {
        static const char *bad[] = {"fffffffffffffff\r\n", "ffffffffffffffff\r\n", "-1\r\n", "\r\n\r\n", "\n", "zz", "0x10\r\n"};
        const char *with = bad[any(7)];
        size_t where = start + any((uint32_t)(p->n - start + 1));
        if (any(4) == 0) p->n = where;                                 /* cut short */
        else if (any(4) == 0) memset(p->bytes + p->n, 'a', 20000), p->n += 20000;  /* endless line, surplus */
        else { memmove(p->bytes + where + strlen(with), p->bytes + where, p->n - where); memcpy(p->bytes + where, with, strlen(with)); p->n += strlen(with); }
    }
}

/* Every third request leaves by the thread, somewhat later; of those every fourth is given up again. */
static void arm(Reader *r, Play *p, int *open) {
    if (any(3)) return;
    p->asked = p->left = 2 + any(3000);
    p->request = malloc(p->asked);
    memset(p->request, 'q', p->asked);
    size_t head = 1 + any((uint32_t)p->asked - 1);
    if (!pdd_arm(r, p->slot, p->request, (int64_t)head, p->request + head, (int64_t)(p->asked - head), NULL, 0, now_ns() + any(2000000))) abort();
    if (any(4)) return;
    int64_t began_ns, sent_ns = pdd_disarm(r, p->slot, &began_ns);
    free(p->request);
    p->request = NULL;
    if (sent_ns >= 0) return;
    p->ended = 1;
    p->left = 0;
    p->at = p->n;
    (*open)--;
}

/* What the server has of a request; whether it has all. */
static int asked(Play *p) {
    uint8_t bytes[4096];
    ssize_t got = p->left && p->theirs >= 0 ? recv(p->theirs, bytes, sizeof bytes, MSG_DONTWAIT) : 0;
    for (ssize_t i = 0; i < got; i++) if (bytes[i] != 'q') abort();
    if (got > 0) p->left -= (size_t)got;
    return !p->left;
}

static int64_t entries_bytes(const uint8_t *at, int64_t n, uint32_t reads) {
    const uint8_t *stop = at + n;
    int64_t sum = 0;
    for (uint32_t i = 0; i < reads; i++) {
        int stamped = *at++ == 0x93, digits;
        at += 9;
        digits = *at == 0xc4 ? 1 : *at == 0xc5 ? 2 : 4;
        at++;
        uint32_t length = 0;
        while (digits--) length = length << 8 | *at++;
        sum += length;
        at += length;
        if (stamped) at += 2 + STAMP_BYTES;
    }
    if (at != stop) abort();
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    state = strtoull(argv[1], NULL, 10);
    long whole = 0, faults = 0, closed = 0, sent = 0;
    Reader *r = pdd_open(5, 1 << 20, 4096);
    if (!r) return 1;
    for (long round = 0; round < atol(argv[2]); round++) {
        Play plays[CONNS] = {0};
        int64_t got[CONNS] = {0};
        for (int i = 0; i < CONNS; i++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) return 1;
            plays[i].ours = pair[0];
            plays[i].theirs = pair[1];
            compose(&plays[i]);
            plays[i].slot = pdd_add(r, pair[0], 0);
            pdd_begin(r, plays[i].slot, (uint32_t)i);
        }
        int open = CONNS, turns = 0;
        for (int i = 0; i < CONNS; i++) arm(r, &plays[i], &open);
        for (; open && turns < 2000000; turns++) {
            Play *p = &plays[any(CONNS)];
            if (p->at < p->n && !asked(p) && any(5000)) {  /* not yet, and now and then before it was asked */
            } else if (p->at < p->n) {  /* a piece, often a byte or two */
                size_t piece = any(3) ? 1 + any(9) : 1 + any(5000);
                if (piece > p->n - p->at) piece = p->n - p->at;
                ssize_t sent = send(p->theirs, p->bytes + p->at, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (sent > 0) p->at += (size_t)sent;
                else if (errno != EAGAIN) p->at = p->n;
            } else if (p->theirs >= 0 && (!p->good || p->kind == UNTIL_CLOSE || any(50) == 0)) {
                close(p->theirs);
                p->theirs = -1;
            }
            Event events[8];
            const uint8_t *bytes;
            uint32_t reads;
            if (turns % 64 == 0) pdd_gather(r, 1 + any(8), &bytes);  /* takes some of what is counted below */
            int n = pdd_events(r, events, 8);
            for (int k = 0; k < n; k++) {
                int i = 0;
                while (i < CONNS && plays[i].slot != events[k].slot) i++;
                if (i == CONNS) continue;
                Play *q = &plays[i];
                if (events[k].flags & SENT && q->request) {
                    if (events[k].sent_bytes != (int64_t)q->asked && events[k].sent_bytes != -1) abort();
                    free(q->request);
                    q->request = NULL;
                    sent++;
                }
                if (events[k].flags & HEAD_CAME && pdd_head(r, q->slot, &bytes) >= q->head && !q->ended) {
                    int64_t t_ns;
                    uint8_t stamp[STAMP_BYTES];
                    int64_t room = any(10) ? 1 << 30 : 100;
                    if (q->head > 0) pdd_body(r, q->slot, q->kind, q->length, q->head, room, 1, &t_ns, stamp);
                    q->head = 1 << 30;
                    if (room == 100) q->good = 0;
                }
                int64_t taken = pdd_take(r, q->slot, &bytes, &reads);
                got[i] += entries_bytes(bytes, taken, reads);
                if (events[k].flags & (DONE | FAULT | CLOSED | TOO_LARGE | UNASKED) && !q->ended) {
                    if (events[k].flags & HEAD_CAME) {  /* what the head's own call found is told next */
                        Event more[CONNS];
                        int m = pdd_events(r, more, CONNS);
                        pthread_mutex_lock(&r->lock);
                        for (int j = 0; j < m; j++)
                            if (more[j].slot != q->slot) tell(r, r->conns[more[j].slot], (uint32_t)more[j].slot, more[j].flags);
                        pthread_mutex_unlock(&r->lock);
                        taken = pdd_take(r, q->slot, &bytes, &reads);
                        got[i] += entries_bytes(bytes, taken, reads);
                    }
                    faults += events[k].flags & FAULT ? 1 : 0;
                    closed += events[k].flags & CLOSED ? 1 : 0;
                    q->ended = 1;
                    open--;
                    if (q->good && got[i] != (int64_t)q->body && !(events[k].flags & UNASKED) && !q->left && q->at == q->n) {
                        fprintf(stderr, "round %ld, kind %d: %lld of %zu bytes, flags %u\n", round, q->kind, (long long)got[i], q->body, events[k].flags);
                        return 1;
                    }
                    whole += q->good;
                }
            }
        }
        for (int i = 0; i < CONNS; i++) {
            int64_t began_ns;
            pdd_disarm(r, plays[i].slot, &began_ns);
            free(plays[i].request);
            pdd_end(r, plays[i].slot);
            pdd_remove(r, plays[i].slot);
            close(plays[i].ours);
            if (plays[i].theirs >= 0) close(plays[i].theirs);
            free(plays[i].bytes);
        }
        if (r->held) return 1;
    }
    pdd_close(r);
    printf("%ld whole, %ld faults, %ld closed, %ld sent\n", whole, faults, closed, sent);
    return 0;
}
