/* The reader of the raw transport: a thread that sends requests when they are due, takes what arrives on all connections
 * and stamps it, without Python.
 *
 * The thread waits in an epoll of its own. A request that Python has prepared leaves at its time by a timerfd, which is
 * looked at between reads too. A read is kept with our stamp and the kernel's (SO_TIMESTAMPNS), its framing
 * taken off, as an entry of the spool's frame of reads (msgpack), so that Python only passes it on. Python is woken, by
 * an eventfd, when it must act: a head, the end of an answer, an error, a full buffer, a request that did not leave whole.
 *
 * The kernel has one stamp for a read: that of the segment of its last byte. Where more than one event may be waiting,
 * the queue is looked at first (MSG_PEEK) and read event by event, so that each keeps the stamp of its own segment.
 *
 * One mutex guards everything but two figures that Python reads alone; the thread holds it for one connection at a time, Python for one call. Descriptors belong
 * to Python, which closes one only after pdd_remove. Nothing here calls into Python; signals stay with its main thread. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "framing.h"

#ifndef PDD_SOURCE
#define PDD_SOURCE "unknown"
#endif
#define API __attribute__((visibility("default")))

enum { BATCH = 256, SENDS_A_TURN = 32, READ_BYTES = 64 << 10, MAX_EVENTS_A_LOOK = 64, STAMP_BYTES = sizeof(struct timespec) };
enum { KEEP_BYTES = 16 << 10, KEEP_OUT_BYTES = 4 << 20, FIRST_BYTES = 1 << 10, ENTRY_BYTES = 64 };
enum { IDLE, HEAD, BODY, OVER, CONNECTING, ARMED };
enum { HEAD_CAME = 1, DONE = 2, FAULT = 4, CLOSED = 8, TOO_LARGE = 16, UNASKED = 32, FULL = 64, CONNECTED = 128, SENT = 256 };
static const uint32_t STOP = UINT32_MAX, TIMER = UINT32_MAX - 1;
static const int64_t NEVER = -1;

typedef struct {
    int64_t t_ns;
    uint32_t n;
    int stamped;
    uint8_t stamp[STAMP_BYTES];
} Stamped;                         /* a read: when, how long, the kernel's stamp as it gave it */

typedef struct {
    uint8_t *bytes;
    size_t used, room;
} Buffer;

typedef struct {
    int fd, state, watched, queued, private_;
    uint32_t user;                 /* counts those that had the slot: what epoll says may be about an earlier one */
    uint32_t index, flags, reads;
    int code;
    int64_t room, last_ns, gap_ns, over_ns;
    Framing framing;
    Buffer entries;                /* reads of the body, as the spool has them */
    Buffer raw, raw_reads;         /* what came before Python knew the head: bytes, and their `Stamped` */
    struct iovec request[2];       /* while ARMED: what is to be sent; Python's memory, which it keeps */
    int64_t due_ns;                /* and when */
    struct sockaddr_storage peer;  /* whom to connect to first */
    socklen_t peer_n;              /* 0: it is connected */
    int64_t began_ns;              /* when it did so, or began to send on a connection that was there */
    int64_t sent_ns, sent_bytes;   /* when the request began to leave (NEVER: not yet), and how much of it did */
} Conn;

typedef struct {
    int64_t due_ns;
    uint32_t slot, user;
} Due;                             /* a request that leaves then, if its connection is still ARMED for it */

typedef struct {
    int32_t slot;
    uint32_t flags;
    int32_t code, surplus;
    int64_t t_ns, began_ns, sent_ns, sent_bytes;
} Event;                           /* what Python must act on */

typedef struct {
    pthread_mutex_t lock;
    pthread_t thread;
    pid_t pid;
    int epoll, wake, stop, timer, frame_kind;
    size_t held, max_held, max_held_one;
    Conn **conns;
    uint32_t n_conns, n_queued, turn;
    int woken;                     /* Python was told to look, and has not yet */
    int32_t *queue, *free_slots;
    uint32_t n_free;
    Due *due;                      /* a heap: the first is the soonest */
    uint32_t n_due, due_room;
    Buffer out;                    /* what the last call gave to Python */
    Stamped newest;
    int64_t looks, exact;          /* how often a queue was looked at, and read event by event */
    uint8_t bytes[READ_BYTES], seen[READ_BYTES];
} Reader;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Room for n more bytes; 0 when there is no memory. */
static int reserve(Buffer *b, size_t n) {
    if (b->room - b->used >= n) return 1;
    size_t room = b->room ? b->room : FIRST_BYTES;
    while (room - b->used < n) room *= 2;
    uint8_t *bytes = realloc(b->bytes, room);
    if (!bytes) return 0;
    b->bytes = bytes;
    b->room = room;
    return 1;
}

static void release(Buffer *b) {
    free(b->bytes);
    memset(b, 0, sizeof *b);
}

/* Empty it; one larger than `keep` is given back. */
static void clear(Buffer *b, size_t keep) {
    if (b->room > keep) release(b);
    b->used = 0;
}

static uint8_t *put_be(uint8_t *to, uint64_t value, int n) {
    for (int shift = 8 * (n - 1); shift >= 0; shift -= 8) *to++ = (uint8_t)(value >> shift);
    return to;
}

/* ---- telling Python */

/* What it need not act on at once: it will see it when it looks the next time. */
static void mention(Reader *r, Conn *c, uint32_t slot, uint32_t flags) {
    c->flags |= flags;
    if (c->queued) return;
    c->queued = 1;
    r->queue[r->n_queued++] = (int32_t)slot;
}

static void tell(Reader *r, Conn *c, uint32_t slot, uint32_t flags) {
    mention(r, c, slot, flags);
    if (!r->woken) eventfd_write(r->wake, 1);
    r->woken = 1;
}

static void watch(Reader *r, Conn *c, uint32_t slot) {
    struct epoll_event want = {.events = (c->state == CONNECTING ? EPOLLOUT : EPOLLIN | EPOLLRDHUP) | EPOLLET,
                               .data.u64 = (uint64_t)c->user << 32 | slot};
    if (!c->watched && !epoll_ctl(r->epoll, EPOLL_CTL_ADD, c->fd, &want)) __atomic_store_n(&c->watched, 1, __ATOMIC_RELAXED);
}

static void unwatch(Reader *r, Conn *c) {
    if (c->watched) epoll_ctl(r->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    __atomic_store_n(&c->watched, 0, __ATOMIC_RELAXED);
}

/* Be told at once of what is still to be read. */
static void watch_again(Reader *r, Conn *c, uint32_t slot) {
    unwatch(r, c);
    watch(r, c, slot);
}

/* Nothing more will be read from it. */
static void end(Reader *r, Conn *c, uint32_t slot, uint32_t flags, int code) {
    unwatch(r, c);
    if (flags & FAULT) c->code = code;
    if (c->state != IDLE) c->state = OVER;
    tell(r, c, slot, flags);
}

/* ---- what a read brought */

static void body(Reader *r, Conn *c, uint32_t slot, const uint8_t *data, const Stamped *read) {
    Buffer *b = &c->entries;
    size_t n = read->n, before = b->used;
    if (!reserve(b, n + ENTRY_BYTES)) {
        end(r, c, slot, FAULT, ENOMEM);
        return;
    }
    uint8_t *at = b->bytes + b->used, *length;
    int digits = n < 1 << 8 ? 1 : n < 1 << 16 ? 2 : 4;
    *at++ = read->stamped ? 0x93 : 0x92;
    *at++ = 0xcf;
    at = put_be(at, (uint64_t)read->t_ns, 8);
    *at++ = digits == 1 ? 0xc4 : digits == 2 ? 0xc5 : 0xc6;
    length = at;
    at += digits;
    int64_t made = framing_feed(&c->framing, data, n, at);
    if (made < 0) {
        end(r, c, slot, FAULT, (int)made);
        return;
    }
    if (made) {
        put_be(length, (uint64_t)made, digits);
        at += made;
        if (read->stamped) {
            *at++ = 0xc4;
            *at++ = STAMP_BYTES;
            memcpy(at, read->stamp, STAMP_BYTES);
            at += STAMP_BYTES;
        }
        b->used = (size_t)(at - b->bytes);
        r->held += b->used - before;
        c->reads++;
        c->room -= made;
    }
    if (c->room < 0) {
        c->over_ns = read->t_ns;
        end(r, c, slot, TOO_LARGE, 0);
    } else if (c->framing.done) {
        c->state = OVER;
        c->over_ns = read->t_ns;
        tell(r, c, slot, DONE);
    } else if (b->used > r->max_held_one || r->held > r->max_held) {
        unwatch(r, c);  /* until Python has taken it */
        tell(r, c, slot, FULL);
    }
}

static void head(Reader *r, Conn *c, uint32_t slot, const uint8_t *data, const Stamped *read) {
    if (!reserve(&c->raw, read->n) || !reserve(&c->raw_reads, sizeof *read)) {
        end(r, c, slot, FAULT, ENOMEM);
        return;
    }
    memcpy(c->raw.bytes + c->raw.used, data, read->n);
    c->raw.used += read->n;
    memcpy(c->raw_reads.bytes + c->raw_reads.used, read, sizeof *read);
    c->raw_reads.used += sizeof *read;
    if (c->raw.used > 4 * READ_BYTES) unwatch(r, c);  /* until Python has made something of it */
    tell(r, c, slot, HEAD_CAME);
}

/* ---- reading */

/* Where the events in some bytes end: after a blank line and the end of its chunk. Returns how many were found. */
static int ends_of(const uint8_t *data, size_t n, uint32_t *ends, int most) {
    int found = 0;
    const uint8_t *at = data, *stop = data + n;
    while (found < most && (at = memchr(at, '\n', (size_t)(stop - at)))) {
        at++;
        if (at < stop && *at == '\n') at++;
        else if (stop - at >= 2 && at[0] == '\r' && at[1] == '\n') at += 2;
        else continue;
        if (stop - at >= 2 && at[0] == '\r' && at[1] == '\n') at += 2;
        ends[found++] = (uint32_t)(at - data);
    }
    return found;
}

/* One read of at most `want` bytes: whether it got as many, so that there may be more. */
static int take(Reader *r, Conn *c, uint32_t slot, size_t want) {
    union { struct cmsghdr head; uint8_t room[128]; } control;
    struct iovec part = {r->bytes, want};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(c->fd, &message, MSG_DONTWAIT);
    if (got < 0) {
        if (errno == EINTR) return 1;
        if (errno != EAGAIN) end(r, c, slot, FAULT, errno);
        return 0;
    }
    Stamped read = {.t_ns = now_ns(), .n = (uint32_t)got};
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&message); m; m = CMSG_NXTHDR(&message, m)) {
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SO_TIMESTAMPNS && m->cmsg_len == CMSG_LEN(STAMP_BYTES)) {
            memcpy(read.stamp, CMSG_DATA(m), STAMP_BYTES);
            read.stamped = 1;
        }
    }
    if (!got) {
        c->over_ns = read.t_ns;
        end(r, c, slot, CLOSED, 0);
        return 0;
    }
    if (read.stamped) r->newest = read;
    if (c->state == HEAD) head(r, c, slot, r->bytes, &read);
    else if (c->state == BODY) body(r, c, slot, r->bytes, &read);
    else end(r, c, slot, UNASKED, 0);
    __atomic_store_n(&c->last_ns, read.t_ns, __ATOMIC_RELAXED);
    return c->watched && (size_t)got == want;
}

static void send_now(Reader *r, Conn *c, uint32_t slot);

/* The attempt to connect has ended, well (0) or not (errno). A request that waits for it leaves. */
static void connected(Reader *r, Conn *c, uint32_t slot, int code) {
    int waits = c->peer_n;
    unwatch(r, c);
    c->code = code;
    c->peer_n = 0;
    c->state = waits ? code ? OVER : HEAD : IDLE;
    if (!code) watch(r, c, slot);
    if (waits && !code) send_now(r, c, slot);
    else tell(r, c, slot, CONNECTED);
}

/* Look at the queue first, and read event by event but for the last. Whether there may be more. */
static int take_one_by_one(Reader *r, Conn *c, uint32_t slot) {
    uint32_t ends[MAX_EVENTS_A_LOOK], done = 0;
    ssize_t n = recv(c->fd, r->seen, READ_BYTES, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {  /* an error is told once: the next read would find a close */
        end(r, c, slot, FAULT, errno);
        return 0;
    }
    int found = n > 0 ? ends_of(r->seen, (size_t)n, ends, MAX_EVENTS_A_LOOK) : 0;
    r->looks++;
    r->exact += found > 1;
    for (int i = 0; i + 1 < found; i++) {
        if (!take(r, c, slot, ends[i] - done)) return c->watched;
        done = ends[i];
    }
    if (found == MAX_EVENTS_A_LOOK) return take(r, c, slot, ends[found - 1] - done);
    return take(r, c, slot, READ_BYTES);
}

/* Something came on a connection (edge-triggered: all of it must be read now, or asked for again). More than one event
 * may wait at the beginning of an answer, and when we come half as late again as its events use to be apart. */
static void visit(Reader *r, Conn *c, uint32_t slot, int closing) {
    if (c->state == CONNECTING) {
        int code = 0;
        socklen_t n = sizeof code;
        connected(r, c, slot, getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &code, &n) ? errno : code);
        return;
    }
    int64_t before = c->last_ns, waited = before == NEVER ? 0 : now_ns() - before, gap;
    int more, several = (c->state == HEAD || c->state == BODY) && (!c->gap_ns || waited > c->gap_ns + c->gap_ns / 2);
    more = several ? take_one_by_one(r, c, slot) : take(r, c, slot, READ_BYTES);
    if (c->watched && (more || closing)) {
        if (!more) more = take(r, c, slot, READ_BYTES);  /* the end of a connection lies behind its last bytes */
        if (more) watch_again(r, c, slot);
    }
    if (c->state != BODY || before == NEVER) return;
    gap = c->last_ns - before;
    if (c->gap_ns && gap > 2 * c->gap_ns) gap = 2 * c->gap_ns;  /* one pause is not what is usual */
    c->gap_ns = c->gap_ns ? c->gap_ns + (gap - c->gap_ns) / 8 : gap;
}

/* ---- sending */

static void set_timer(Reader *r) {
    struct itimerspec when = {0};
    if (r->n_due) {
        when.it_value.tv_sec = r->due[0].due_ns / 1000000000LL;
        when.it_value.tv_nsec = r->due[0].due_ns % 1000000000LL;  /* never both 0: that would disarm it */
    }
    timerfd_settime(r->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static int push_due(Reader *r, Due due) {
    if (r->n_due == r->due_room) {
        uint32_t room = r->due_room ? 2 * r->due_room : 64;
        Due *more = realloc(r->due, room * sizeof *more);
        if (!more) return 0;
        r->due = more;
        r->due_room = room;
    }
    uint32_t at = r->n_due++;
    for (; at && r->due[(at - 1) / 2].due_ns > due.due_ns; at = (at - 1) / 2) r->due[at] = r->due[(at - 1) / 2];
    r->due[at] = due;
    return 1;
}

static Due pop_due(Reader *r) {
    Due first = r->due[0], last = r->due[--r->n_due];
    uint32_t at = 0, child;
    while ((child = 2 * at + 1) < r->n_due) {
        if (child + 1 < r->n_due && r->due[child + 1].due_ns < r->due[child].due_ns) child++;
        if (last.due_ns <= r->due[child].due_ns) break;
        r->due[at] = r->due[child];
        at = child;
    }
    r->due[at] = last;
    return first;
}

/* A request leaves now; what the socket does not take at once is left to Python. Why it broke is seen by reading. */
static void send_now(Reader *r, Conn *c, uint32_t slot) {
    struct msghdr message = {.msg_iov = c->request, .msg_iovlen = 2};
    size_t whole = c->request[0].iov_len + c->request[1].iov_len;
    c->state = HEAD;
    c->sent_ns = now_ns();
    ssize_t sent = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    c->sent_bytes = sent >= 0 ? sent : errno == EAGAIN ? 0 : -1;
    memset(c->request, 0, sizeof c->request);
    if (sent == (ssize_t)whole) mention(r, c, slot, SENT);
    else tell(r, c, slot, SENT);
}

/* Begin to connect; on the loopback that is done at once. */
static void connect_now(Reader *r, Conn *c, uint32_t slot) {
    const struct sockaddr *peer = (const struct sockaddr *)&c->peer;
    int code = connect(c->fd, peer, c->peer_n) ? errno : 0;
    if (code == EINPROGRESS) code = connect(c->fd, peer, c->peer_n) ? errno : 0;
    if (code == EALREADY) {
        c->state = CONNECTING;
        watch(r, c, slot);
        code = c->watched ? 0 : errno;
        if (!code) return;
    }
    connected(r, c, slot, code == EISCONN ? 0 : code);
}

/* Send what is due, but not for ever: when thousands are due at once, reading and Python get their turn between them. */
static void send_due(Reader *r, int64_t now) {
    for (int n = 0; n < SENDS_A_TURN && r->n_due && r->due[0].due_ns <= now; n++) {
        Due due = pop_due(r);
        Conn *c = r->conns[due.slot];
        if (c->state == ARMED && c->user == due.user && c->due_ns == due.due_ns) {
            c->began_ns = now_ns();
            if (c->peer_n) connect_now(r, c, due.slot);
            else if (c->watched) send_now(r, c, due.slot);
        }
        if (!r->n_due || r->due[0].due_ns > now) now = now_ns();
    }
}

static void ask_for_short_slices(void) {
#ifdef SYS_sched_setattr
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; }
        a = {.size = 48};
    if (!syscall(SYS_sched_getattr, 0, &a, 48, 0) && a.policy == 0) {
        a.runtime = 300000;
        syscall(SYS_sched_setattr, 0, &a, 0);
    }
#endif
}

static void *run(void *argument) {
    Reader *r = argument;
    struct epoll_event ready[BATCH];
    ask_for_short_slices();
    for (;;) {
        int n = epoll_wait(r->epoll, ready, BATCH, -1);
        for (int i = 0; i < n; i++) {
            uint32_t slot = (uint32_t)ready[i].data.u64, user = (uint32_t)(ready[i].data.u64 >> 32);
            if (slot == STOP) return NULL;
            pthread_mutex_lock(&r->lock);
            if (slot == TIMER) {
                uint64_t count;
                if (read(r->timer, &count, sizeof count) > 0) {}
                send_due(r, now_ns());
                set_timer(r);
            } else {
                Conn *c = r->conns[slot];
                if (c->watched && c->user == user) {
                    visit(r, c, slot, !!(ready[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)));
                    if (r->n_due && r->due[0].due_ns <= c->last_ns) send_due(r, c->last_ns);
                }
            }
            pthread_mutex_unlock(&r->lock);
        }
    }
}

/* ---- for Python; `slot` is what pdd_add gave. Pointers that are returned hold until the next call. */

API const char *pdd_source(void) { return PDD_SOURCE; }

API void pdd_close(Reader *r) {
    if (getpid() != r->pid) return;  /* after a fork the thread is the parent's */
    if (r->thread) {
        eventfd_write(r->stop, 1);
        pthread_join(r->thread, NULL);
    }
    for (uint32_t slot = 0; slot < r->n_conns; slot++) {
        Conn *c = r->conns[slot];
        if (!c) continue;
        release(&c->entries);
        release(&c->raw);
        release(&c->raw_reads);
        free(c);
    }
    if (r->epoll >= 0) close(r->epoll);
    if (r->wake >= 0) close(r->wake);
    if (r->stop >= 0) close(r->stop);
    if (r->timer >= 0) close(r->timer);
    release(&r->out);
    free(r->due);
    free(r->conns);
    free(r->queue);
    free(r->free_slots);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* A reader with its thread; NULL and errno when there can be none. */
API Reader *pdd_open(int frame_kind, int64_t max_held, int64_t max_held_one) {
    Reader *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    pthread_mutex_init(&r->lock, NULL);
    r->pid = getpid();
    r->frame_kind = frame_kind;
    r->max_held = (size_t)max_held;
    r->max_held_one = (size_t)max_held_one;
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->stop = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event want = {.events = EPOLLIN, .data.u64 = STOP}, tick = {.events = EPOLLIN, .data.u64 = TIMER};
    sigset_t all, old;
    sigfillset(&all);
    int wrong = r->epoll < 0 || r->wake < 0 || r->stop < 0 || r->timer < 0 ||
                epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->stop, &want) || epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->timer, &tick)
                ? errno : 0;
    if (!wrong) {
        pthread_sigmask(SIG_SETMASK, &all, &old);
        wrong = pthread_create(&r->thread, NULL, run, r);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (wrong) r->thread = 0;
    }
    if (wrong) {
        pdd_close(r);
        errno = wrong;
        return NULL;
    }
    return r;
}

API int pdd_wake_fd(Reader *r) { return r->wake; }

static int grow(Reader *r) {
    uint32_t n = r->n_conns ? 2 * r->n_conns : 64;
    Conn **conns = realloc(r->conns, n * sizeof *conns);
    if (conns) r->conns = conns;
    int32_t *queue = realloc(r->queue, n * sizeof *queue), *slots;
    if (queue) r->queue = queue;
    slots = realloc(r->free_slots, n * sizeof *slots);
    if (slots) r->free_slots = slots;
    if (!conns || !queue || !slots) return 0;
    for (uint32_t slot = n; slot-- > r->n_conns;) {
        r->conns[slot] = NULL;
        r->free_slots[r->n_free++] = (int32_t)slot;
    }
    r->n_conns = n;
    return 1;
}

/* Read this descriptor: from now on (`how` 0), from when it is connected (1), or not yet, for pdd_arm will connect it (2).
 * Its slot, or -errno. */
API int pdd_add(Reader *r, int fd, int how) {
    int slot = -ENOMEM;
    pthread_mutex_lock(&r->lock);
    if (r->n_free || grow(r)) {
        slot = r->free_slots[r->n_free - 1];
        Conn *c = r->conns[slot];
        if (!c) c = r->conns[slot] = calloc(1, sizeof *c);
        if (!c) {
            slot = -ENOMEM;
        } else {
            c->fd = fd;
            c->state = how == 1 ? CONNECTING : IDLE;
            c->flags = 0;
            c->code = 0;
            c->peer_n = 0;
            if (how != 2) watch(r, c, (uint32_t)slot);
            if (c->watched || how == 2) r->n_free--;
            else slot = -errno;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return slot;
}

static void forget(Reader *r, Conn *c) {
    r->held -= c->entries.used;
    clear(&c->entries, KEEP_BYTES);
    clear(&c->raw, KEEP_BYTES);
    clear(&c->raw_reads, KEEP_BYTES);
    c->reads = 0;
}

/* Never again. After it the descriptor may be closed. */
API void pdd_remove(Reader *r, int slot) {
    pthread_mutex_lock(&r->lock);
    Conn *c = r->conns[slot];
    unwatch(r, c);
    forget(r, c);
    c->fd = -1;
    c->user++;
    c->flags = 0;
    c->state = IDLE;
    r->free_slots[r->n_free++] = slot;
    pthread_mutex_unlock(&r->lock);
}

/* An answer is expected, of request `index`. Whether the connection is still good for one. */
API int pdd_begin(Reader *r, int slot, uint32_t index) {
    pthread_mutex_lock(&r->lock);
    Conn *c = r->conns[slot];
    int good = c->watched && !c->flags;
    forget(r, c);
    c->state = HEAD;
    c->index = index;
    c->private_ = 0;
    c->gap_ns = 0;
    __atomic_store_n(&c->last_ns, NEVER, __ATOMIC_RELAXED);
    c->sent_ns = NEVER;
    pthread_mutex_unlock(&r->lock);
    return good;
}

/* After pdd_begin: the request leaves at `due_ns` (CLOCK_MONOTONIC), or as soon as the connection to `peer` is there that
 * is begun then, and only then is an answer expected. Its bytes stay Python's, which keeps them until it was told SENT or
 * CONNECTED, or has called pdd_disarm. 0: no memory. */
API int pdd_arm(Reader *r, int slot, const uint8_t *head, int64_t n_head, const uint8_t *body, int64_t n_body,
                const uint8_t *peer, int n_peer, int64_t due_ns) {
    pthread_mutex_lock(&r->lock);
    Conn *c = r->conns[slot];
    int soonest = !r->n_due || due_ns < r->due[0].due_ns, known = push_due(r, (Due){due_ns, (uint32_t)slot, c->user});
    if (known) {
        if (c->state == HEAD) c->state = ARMED;
        c->due_ns = due_ns;
        c->peer_n = (size_t)n_peer <= sizeof c->peer ? (socklen_t)n_peer : 0;
        if (c->peer_n) memcpy(&c->peer, peer, c->peer_n);
        c->request[0] = (struct iovec){(void *)head, (size_t)n_head};
        c->request[1] = (struct iovec){(void *)body, (size_t)n_body};
        if (soonest) set_timer(r);
    }
    pthread_mutex_unlock(&r->lock);
    return known;
}

/* When the armed request began to leave; -1: it has not, and will not any more. `began_ns`: when it began to connect. */
API int64_t pdd_disarm(Reader *r, int slot, int64_t *began_ns) {
    pthread_mutex_lock(&r->lock);
    Conn *c = r->conns[slot];
    if (c->state == ARMED || (c->state == CONNECTING && c->peer_n)) c->state = OVER;
    int64_t t_ns = c->sent_ns;
    *began_ns = c->began_ns;
    pthread_mutex_unlock(&r->lock);
    return t_ns;
}

/* The answer is over for Python, well or not; the connection is idle. */
API void pdd_end(Reader *r, int slot) {
    pthread_mutex_lock(&r->lock);
    r->conns[slot]->state = IDLE;
    forget(r, r->conns[slot]);
    pthread_mutex_unlock(&r->lock);
}

/* What has come before Python knew the head. */
API int64_t pdd_head(Reader *r, int slot, const uint8_t **bytes) {
    pthread_mutex_lock(&r->lock);
    Conn *c = r->conns[slot];
    int64_t n = reserve(&r->out, c->raw.used + 1) ? (int64_t)c->raw.used : -1;
    if (n > 0) memcpy(r->out.bytes, c->raw.bytes, c->raw.used);
    *bytes = r->out.bytes;
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* The head took `skip` bytes; the body that follows is delimited so, and at most `room` bytes of it are kept. What is
 * `private_` is left out by pdd_gather. Gives the stamps of the read that completed the head (kernel's: 16 bytes).
 * Returns 1 when the kernel had stamped it, 0 when not, -1 when there is no such head. */
API int pdd_body(Reader *r, int slot, int kind, int64_t length, int64_t skip, int64_t room, int private_, int64_t *t_ns,
                 uint8_t *stamp) {
    int stamped = -1;
    pthread_mutex_lock(&r->lock);
    Conn *c = r->conns[slot];
    Buffer raw = c->raw, reads = c->raw_reads;
    memset(&c->raw, 0, sizeof raw);
    memset(&c->raw_reads, 0, sizeof reads);
    framing_begin(&c->framing, kind, length);
    if (c->state == HEAD) c->state = BODY;
    c->room = room;
    c->private_ = private_;
    int64_t at = 0;
    for (size_t i = 0; i + sizeof(Stamped) <= reads.used; i += sizeof(Stamped)) {
        Stamped read;
        memcpy(&read, reads.bytes + i, sizeof read);
        int64_t after = at + read.n;
        if (at < skip && after >= skip) {
            *t_ns = read.t_ns;
            memcpy(stamp, read.stamp, STAMP_BYTES);
            stamped = read.stamped;
            if (c->framing.done) {  /* no body: what follows is nobody's */
                c->framing.surplus = after > skip || i + sizeof read < reads.used;
                c->state = OVER;
                c->over_ns = read.t_ns;
                tell(r, c, (uint32_t)slot, DONE);
                break;
            }
        }
        if (after > skip) {
            int64_t from = at < skip ? skip : at;
            read.n = (uint32_t)(after - from);
            if (c->state == BODY) {
                body(r, c, (uint32_t)slot, raw.bytes + from, &read);
            } else if (c->flags & DONE) {
                c->framing.surplus = 1;
            } else if (!(c->flags & (FAULT | TOO_LARGE))) {  /* the server has closed; this came before */
                c->state = BODY;
                body(r, c, (uint32_t)slot, raw.bytes + from, &read);
                if (c->state == BODY) c->state = OVER;
            }
        }
        at = after;
    }
    if (c->state == BODY && !(c->flags & FULL)) watch(r, c, (uint32_t)slot);
    release(&raw);
    release(&reads);
    pthread_mutex_unlock(&r->lock);
    return stamped;
}

/* Up to `most` connections on which something happened. */
API int pdd_events(Reader *r, Event *out, int most) {
    int n = 0;
    eventfd_t count;
    pthread_mutex_lock(&r->lock);
    eventfd_read(r->wake, &count);
    while (r->n_queued && n < most) {
        int32_t slot = r->queue[--r->n_queued];
        Conn *c = r->conns[slot];
        c->queued = 0;
        if (!c->flags) continue;
        out[n++] = (Event){slot, c->flags, c->code, c->framing.surplus, c->flags & HEAD_CAME ? c->last_ns : c->over_ns,
                           c->began_ns, c->sent_ns, c->sent_bytes};
        c->flags = 0;
    }
    r->woken = !!r->n_queued;
    if (r->woken) eventfd_write(r->wake, 1);
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* The reads of an answer that were not taken yet: msgpack entries, and how many. A full connection is read again. */
API int64_t pdd_take(Reader *r, int slot, const uint8_t **bytes, uint32_t *reads) {
    pthread_mutex_lock(&r->lock);
    Conn *c = r->conns[slot];
    Buffer given = r->out;
    int64_t n = (int64_t)c->entries.used;
    given.used = 0;
    r->out = c->entries;
    c->entries = given;
    clear(&c->entries, KEEP_BYTES);
    r->held -= (size_t)n;
    *bytes = r->out.bytes;
    *reads = c->reads;
    c->reads = 0;
    if (c->state == BODY) watch(r, c, (uint32_t)slot);
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* Frames of reads for the spool, of one part of the connections in `parts`; the parts take turns. -1: no memory. */
API int64_t pdd_gather(Reader *r, uint32_t parts, const uint8_t **bytes) {
    pthread_mutex_lock(&r->lock);
    clear(&r->out, KEEP_OUT_BYTES);
    uint32_t some = (r->n_conns + parts - 1) / (parts ? parts : 1);
    for (uint32_t i = 0; i < some; i++) {
        uint32_t slot = r->turn++ % r->n_conns;
        Conn *c = r->conns[slot];
        if (!c || !c->reads || c->private_) continue;
        size_t payload = 1 + 5 + 5 + c->entries.used;
        if (!reserve(&r->out, 9 + payload)) {
            pthread_mutex_unlock(&r->lock);
            return -1;
        }
        uint8_t *at = r->out.bytes + r->out.used;
        at = put_be(at, payload, 4);
        *at++ = (uint8_t)r->frame_kind;
        at = put_be(at, c->index, 4);
        *at++ = 0x92;
        *at++ = 0xce;
        at = put_be(at, c->index, 4);
        *at++ = 0xdd;
        at = put_be(at, c->reads, 4);
        memcpy(at, c->entries.bytes, c->entries.used);
        r->out.used += 9 + payload;
        r->held -= c->entries.used;
        clear(&c->entries, KEEP_BYTES);
        c->reads = 0;
        if (c->state == BODY) watch(r, c, slot);
    }
    *bytes = r->out.bytes;
    int64_t n = (int64_t)r->out.used;
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* When the last byte came; -1 before the first. Like the next without the mutex, for which Python would often wait. */
API int64_t pdd_last_ns(Reader *r, int slot) { return __atomic_load_n(&r->conns[slot]->last_ns, __ATOMIC_RELAXED); }

/* Whether the server has not closed it, and nothing came that nobody asked for. */
API int pdd_good(Reader *r, int slot) { return __atomic_load_n(&r->conns[slot]->watched, __ATOMIC_RELAXED); }

/* Our stamp of the newest read that has the kernel's too (16 bytes); 0 when there is none. */
API int64_t pdd_newest(Reader *r, uint8_t *stamp) {
    pthread_mutex_lock(&r->lock);
    int64_t t_ns = r->newest.t_ns;
    memcpy(stamp, r->newest.stamp, STAMP_BYTES);
    pthread_mutex_unlock(&r->lock);
    return t_ns;
}

/* How often a queue was looked at before it was read, and how often it was then read event by event. */
API void pdd_counts(Reader *r, int64_t *looks, int64_t *exact) {
    pthread_mutex_lock(&r->lock);
    *looks = r->looks;
    *exact = r->exact;
    pthread_mutex_unlock(&r->lock);
}

/* CPU time that the thread has taken. */
API int64_t pdd_cpu_ns(Reader *r) {
    clockid_t clock;
    struct timespec t = {0};
    if (!pthread_getcpuclockid(r->thread, &clock)) clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* For tests: the framing alone. */
API int64_t pdd_feed(Framing *f, const uint8_t *data, int64_t n, uint8_t *out) { return framing_feed(f, data, (size_t)n, out); }
API void pdd_feed_begin(Framing *f, int kind, int64_t length) { framing_begin(f, kind, length); }
API int pdd_feed_state(const Framing *f) { return f->done | f->surplus << 1; }
