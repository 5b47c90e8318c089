/* What a client in C costs: one thread, epoll, recvmsg with kernel stamps, the known truth read from every event.
 * stream_client PORT STREAMS RATE LIFE_S. The plan is that of bench_instrument.py. Prints one JSON line. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct { int fd, first, kept; char tail[64]; } Conn;
typedef struct { double *v; long n, cap; } List;

static int64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void add(List *l, double x) {
    if (l->n == l->cap) l->v = realloc(l->v, sizeof(double) * (l->cap = l->cap ? 2 * l->cap : 4096));
    l->v[l->n++] = x;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, List *l) {
    qsort(l->v, l->n, sizeof(double), ascending);
    printf("\"%s\": [%.3f, %.3f, %.3f], ", name, l->v[l->n / 2], l->v[l->n * 99 / 100], l->v[l->n - 1]);
}

static char buffer[262144 + 64];

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    int port = atoi(argv[1]), streams = atoi(argv[2]), total = 2 * streams, one = 1, next = 0, done = 0, idle = 0;
    double rate = atof(argv[3]), life = atof(argv[4]);
    char request[1024], body[512];
    memset(body, ' ', sizeof body);
    int n_request = sprintf(request, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nx-ttft-us: 20000\r\nx-itl-us: %d\r\n"
        "x-ntok: %d\r\nContent-Length: 400\r\n\r\n%.400s", (int)(1e6 / rate), (int)(life * rate), body);
    prctl(PR_SET_TIMERSLACK, 1);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    Conn **pool = malloc(sizeof *pool * total);
    List user = {0}, kernel = {0}, drift = {0};
    struct epoll_event ready[512];
    int poller = epoll_create1(0);
    long events = 0;
    int64_t cpu0 = clock_ns(CLOCK_PROCESS_CPUTIME_ID), offset = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    int64_t t0 = clock_ns(CLOCK_MONOTONIC) + 100000000;
    while (done < total) {
        int64_t t = clock_ns(CLOCK_MONOTONIC), due = t0 + (int64_t)(next * life / streams * 1e9);
        for (; next < total && due <= t; due = t0 + (int64_t)(++next * life / streams * 1e9)) {
            Conn *c = idle ? pool[--idle] : NULL;
            if (!c) {
                c = calloc(1, sizeof *c);
                c->fd = socket(AF_INET, SOCK_STREAM, 0);
                setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                setsockopt(c->fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
                if (connect(c->fd, (void *)&address, sizeof address)) return 1;
                struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
                epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
            }
            c->first = 1;
            c->kept = 0;
            add(&drift, (clock_ns(CLOCK_MONOTONIC) - due) / 1e6);
            if (write(c->fd, request, n_request) != n_request) return 1;
        }
        int64_t wait = next < total ? due - clock_ns(CLOCK_MONOTONIC) : 1000000000LL;
        struct timespec timeout = {wait > 0 ? wait / 1000000000LL : 0, wait > 0 ? wait % 1000000000LL : 0};
        int n = epoll_pwait2(poller, ready, 512, &timeout, NULL);
        for (int k = 0; k < n; k++) {
            Conn *c = ready[k].data.ptr;
            char control[128];
            memcpy(buffer, c->tail, c->kept);
            struct iovec iov = {buffer + c->kept, 262144};
            struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            ssize_t got = recvmsg(c->fd, &message, MSG_DONTWAIT);
            if (got <= 0) return 1;
            int64_t read_ns = clock_ns(CLOCK_MONOTONIC), stamp_ns = 0;
            struct cmsghdr *found = CMSG_FIRSTHDR(&message);
            if (found) {
                struct timespec *s = (void *)CMSG_DATA(found);
                stamp_ns = s->tv_sec * 1000000000LL + s->tv_nsec - offset;
            }
            char *at = buffer, *end = buffer + c->kept + got, *key;
            while ((key = memmem(at, end - at, "\"ns\":\"", 6)) && key + 26 <= end) {
                int64_t truth = 0;
                for (char *d = key + 6; d < key + 25; d++) truth = 10 * truth + *d - '0';
                if (c->first) {
                    add(&user, (read_ns - truth) / 1e6);
                    if (stamp_ns) add(&kernel, (stamp_ns - truth) / 1e6);
                }
                c->first = 0;
                events++;
                at = key + 26;
            }
            if (end - buffer >= 5 && !memcmp(end - 5, "0\r\n\r\n", 5)) {
                pool[idle++] = c;
                done++;
                c->kept = 0;
            } else {
                c->kept = end - at < 40 ? end - at : 40;
                memcpy(c->tail, end - c->kept, c->kept);
            }
        }
    }
    printf("{");
    print("ttft_user_ms", &user);
    print("ttft_kernel_ms", &kernel);
    print("drift_ms", &drift);
    printf("\"events\": %ld, \"wall_s\": %.3f, \"cpu_us_event\": %.2f}\n", events,
           (clock_ns(CLOCK_MONOTONIC) - t0) / 1e9, (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu0) / 1e3 / events);
    return 0;
}
