/* A streaming server whose truth is known: every event carries the CLOCK_MONOTONIC ns taken just before its write().
 * One thread, epoll, a heap of deadlines. Prints "PORT n" and serves loopback until its stdin closes.
 * A request says what it wants in headers: x-ttft-us, x-itl-us, x-ntok. At the end it prints how late it was itself. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_CONNECTIONS 65536
#define EVENTS_A_TURN 64

typedef struct {
    int fd, place, active, used;
    unsigned made, wanted;
    int64_t due, gap;
    char in[8192];
} Conn;

static Conn *heap[MAX_CONNECTIONS];
static int heaped, poller;
static int64_t *lateness, n_late, cap_late;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void put(int place, Conn *c) { heap[place] = c; c->place = place; }

static void sift(int i) {
    Conn *c = heap[i];
    while (i && heap[(i - 1) / 2]->due > c->due) { put(i, heap[(i - 1) / 2]); i = (i - 1) / 2; }
    for (;;) {
        int k = 2 * i + 1;
        if (k + 1 < heaped && heap[k + 1]->due < heap[k]->due) k++;
        if (k >= heaped || heap[k]->due >= c->due) break;
        put(i, heap[k]);
        i = k;
    }
    put(i, c);
}

static void activate(Conn *c) { c->active = 1; heap[heaped] = c; c->place = heaped++; sift(c->place); }

static void deactivate(Conn *c) {
    int i = c->place;
    c->active = 0;
    if (i != --heaped) { put(i, heap[heaped]); sift(i); }
}

static void drop(Conn *c) {
    if (c->active) deactivate(c);
    close(c->fd);
    free(c);
}

static long field(const char *head, const char *name, long otherwise) {
    const char *found = strcasestr(head, name);
    return found ? atol(found + strlen(name)) : otherwise;
}

static void take_request(Conn *c) {
    c->in[c->used] = 0;
    char *end = strstr(c->in, "\r\n\r\n");
    if (!end) return;
    long body = field(c->in, "\r\ncontent-length:", 0);
    if (c->used < end + 4 - c->in + body) return;
    c->due = now_ns() + 1000LL * field(c->in, "\r\nx-ttft-us:", 20000);
    c->gap = 1000LL * field(c->in, "\r\nx-itl-us:", 20000);
    c->wanted = field(c->in, "\r\nx-ntok:", 16);
    c->made = 0;
    c->used = 0;
    activate(c);
}

static const char HEAD[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char EVENT[] = "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1767225600,\"model\":\"mock\","
    "\"choices\":[{\"index\":0,\"text\":\" tok\",\"finish_reason\":%s}],\"ns\":\"%019lld\"}\n\n";
static const char TAIL[] = "data: {\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":%u,"
    "\"total_tokens\":%u}}\n\ndata: [DONE]\n\n";

static int chunk(char *to, const char *data, int n) { return sprintf(to, "%x\r\n%.*s\r\n", n, n, data); }

static void send_event(Conn *c) {
    char out[2048], event[512];
    int n = 0, last = c->made + 1 == c->wanted;
    if (!c->made) n += sprintf(out, "%s", HEAD);
    int64_t t = now_ns();
    n += chunk(out + n, event, sprintf(event, EVENT, last ? "\"length\"" : "null", (long long)t));
    if (last) {
        n += chunk(out + n, event, sprintf(event, TAIL, c->wanted, c->wanted + 10));
        n += sprintf(out + n, "0\r\n\r\n");
    }
    if (n_late == cap_late) lateness = realloc(lateness, sizeof *lateness * (cap_late = cap_late ? 2 * cap_late : 1 << 16));
    lateness[n_late++] = t - c->due;
    c->made++;
    c->due += c->gap;
    if (last) deactivate(c); else sift(c->place);
    if (write(c->fd, out, n) != n) drop(c);  /* a client that does not read: not in these tests */
}

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 8192)) return 1;
    getsockname(listener, (void *)&address, &length);
    printf("PORT %d\n", ntohs(address.sin_port));
    fflush(stdout);
    poller = epoll_create1(0);
    struct epoll_event want = {.events = EPOLLIN}, ready[256];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &want);
    want.data.ptr = &poller;
    epoll_ctl(poller, EPOLL_CTL_ADD, 0, &want);
    for (int alive = 1; alive;) {
        int64_t wait = heaped ? heap[0]->due - now_ns() : 1000000000LL;
        struct timespec timeout = {wait > 0 ? wait / 1000000000LL : 0, wait > 0 ? wait % 1000000000LL : 0};
        int n = epoll_pwait2(poller, ready, 256, &timeout, NULL);
        for (int k = 0; k < n; k++) {
            Conn *c = ready[k].data.ptr;
            if ((void *)c == &poller) { alive = 0; continue; }
            if (!c) {
                for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
                    c = calloc(1, sizeof *c);
                    c->fd = fd;
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
                    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            ssize_t got = read(c->fd, c->in + c->used, sizeof c->in - 1 - c->used);
            if (got <= 0) { drop(c); continue; }
            c->used += got;
            take_request(c);
        }
        int64_t t = now_ns();
        for (int k = 0; heaped && heap[0]->due <= t && k < EVENTS_A_TURN; k++) send_event(heap[0]);
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    qsort(lateness, n_late, sizeof *lateness, ascending);
    printf("{\"events\": %lld, \"late_p99_ms\": %.3f, \"cpu_s\": %.2f}\n", (long long)n_late,
           n_late ? lateness[n_late * 99 / 100] / 1e6 : 0.0,
           used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    return 0;
}
