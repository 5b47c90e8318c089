/* The TUN emulator: packets between two TUN devices, with delay, jitter, rate, loss and a bounded queue in each direction.
 *
 * The same program as emulator.py, for hosts with a C compiler: usage `emulator FD_A FD_B SEED`, both open TUN devices with a
 * virtio header (IFF_VNET_HDR). Lines on stdin control it, its end is the sign to go; each line is answered by one on stdout:
 *   set DIR DELAY_NS JITTER_NS NORMAL BIT_PER_S TO_BAD TO_GOOD BAD_LOSS GOOD_LOSS LIMIT_BYTES OFFLOAD   (shares are 0..1)
 *   stats            -> for each direction: packets bytes lost dropped queued_bytes late_sum_ns late_max_ns
 * A rate counts Ethernet frames, as netem's does. Random loss is the two-state model that never leaves its good state.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define HEADER sizeof(struct virtio_net_hdr)
#define ETHERNET 14
#define BIGGEST (HEADER + 65536)
#define BATCH 64
#define PAUSE_NS 50000 /* adds at most this to a packet's delay */

typedef int64_t ns_t;

struct packet {
    struct packet *next;
    ns_t due;
    double leaves;   /* when the line has sent it */
    uint32_t bytes;  /* on the line */
    uint32_t length; /* of data: header and IP packet */
    uint8_t data[];
};

struct direction {
    int from, to;
    ns_t delay, jitter;
    int normal, bad, offload;
    double bit_per_s, to_bad, to_good, bad_loss, good_loss;
    int64_t limit, queued;
    double free_at; /* when the line has sent what it was given; a double keeps fractions of a nanosecond */
    ns_t last_due;
    struct packet *head, *tail;
    uint64_t packets, bytes, lost, dropped;
    ns_t late_sum, late_max;
};

static struct direction directions[2];
static uint64_t random_state;

static ns_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static double uniform(void) { /* splitmix64: [0, 1) */
    uint64_t z = (random_state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

static double variate(int normal) {
    if (!normal) return 2 * uniform() - 1;
    return sqrt(-2 * log(1 - uniform())) * cos(2 * M_PI * uniform());
}

static int is_lost(struct direction *d) {
    if (uniform() < (d->bad ? d->to_good : d->to_bad)) d->bad = !d->bad;
    double share = d->bad ? d->bad_loss : d->good_loss;
    return share > 0 && uniform() < share;
}

/* Bytes on the line: a super-packet stands for several frames, each with its own headers. */
static uint32_t wire_bytes(const uint8_t *data, uint32_t length) {
    struct virtio_net_hdr h;
    memcpy(&h, data, HEADER);
    uint32_t ip = length - HEADER;
    if (h.gso_type == VIRTIO_NET_HDR_GSO_NONE || !h.gso_size || h.csum_start + 13u > ip) return ip + ETHERNET;
    uint32_t headers = h.csum_start + (data[HEADER + h.csum_start + 12] >> 4) * 4u;
    if (headers >= ip) return ip + ETHERNET;
    uint32_t frames = (ip - headers + h.gso_size - 1) / h.gso_size;
    return ip + (frames - 1) * headers + frames * ETHERNET;
}

static ns_t due_time(struct direction *d, struct packet *p, ns_t now) {
    p->leaves = now;
    if (d->bit_per_s > 0) {
        if (d->free_at < now) d->free_at = now;
        d->free_at += p->bytes * 8e9 / d->bit_per_s;
        p->leaves = d->free_at;
    }
    ns_t late = d->jitter ? (ns_t)(variate(d->normal) * d->jitter) : 0;
    ns_t delay = d->delay + late > 0 ? d->delay + late : 0;
    ns_t due = (ns_t)p->leaves + delay;
    return d->last_due = due > d->last_due ? due : d->last_due; /* a line does not reorder */
}

static void enqueue(struct direction *d, const uint8_t *data, uint32_t length, ns_t now) {
    uint32_t bytes = wire_bytes(data, length);
    if (is_lost(d)) { d->lost++; return; }
    struct packet *p = d->queued + length > d->limit ? NULL : malloc(sizeof *p + length);
    if (!p) { d->dropped++; return; }
    p->next = NULL;
    p->bytes = bytes;
    p->length = length;
    memcpy(p->data, data, length);
    p->due = due_time(d, p, now);
    d->queued += length;
    d->packets++;
    d->bytes += bytes;
    if (d->tail) d->tail->next = p; else d->head = p;
    d->tail = p;
}

static void deliver(struct direction *d) {
    ns_t now = now_ns();
    for (int n = 0; d->head && d->head->due <= now && n < BATCH; n++) {
        struct packet *p = d->head;
        if (!(d->head = p->next)) d->tail = NULL;
        d->queued -= p->length;
        if (write(d->to, p->data, p->length) < 0) d->dropped++;
        ns_t late = now - p->due;
        d->late_sum += late;
        if (late > d->late_max) d->late_max = late;
        free(p);
        now = now_ns();
    }
}

static int receive(struct direction *d) {
    static uint8_t buffer[BIGGEST];
    int got = 0;
    for (; got < BATCH; got++) {
        ssize_t length = read(d->from, buffer, sizeof buffer);
        if (length <= (ssize_t)HEADER) break;
        enqueue(d, buffer, (uint32_t)length, now_ns());
    }
    return got;
}

static int offload(struct direction *d, int on) {
    unsigned flags = on ? TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN : 0;
    d->offload = on;
    return ioctl(d->from, TUNSETOFFLOAD, flags);
}

/* Another rate from now on: what waits for the line leaves at it, what has left it is on its way. */
static void change_rate(struct direction *d, double bit_per_s) {
    double before = d->bit_per_s, now = now_ns();
    d->bit_per_s = bit_per_s;
    if (before == bit_per_s || before <= 0 || d->free_at <= now) return; /* as it was, or nothing waits */
    d->free_at = now;
    d->last_due = 0;
    for (struct packet *p = d->head; p; p = p->next) {
        if (p->leaves > now) {
            ns_t delay = p->due - (ns_t)p->leaves;
            double left = (p->leaves - now) * before / 8e9; /* the first may be on the line in part */
            if (bit_per_s > 0) d->free_at += (left < p->bytes ? left : p->bytes) * 8e9 / bit_per_s;
            p->leaves = d->free_at;
            p->due = (ns_t)p->leaves + delay;
        }
        if (p->due < d->last_due) p->due = d->last_due;
        d->last_due = p->due;
    }
}

static int set(const char *line) {
    struct direction s, *d;
    long long delay, jitter, limit;
    int which, on;
    if (sscanf(line, "set %d %lld %lld %d %lf %lf %lf %lf %lf %lld %d", &which, &delay, &jitter, &s.normal, &s.bit_per_s,
               &s.to_bad, &s.to_good, &s.bad_loss, &s.good_loss, &limit, &on) != 11 || which < 0 || which > 1)
        return -1;
    d = &directions[which];
    d->delay = delay, d->jitter = jitter, d->normal = s.normal;
    d->to_bad = s.to_bad, d->to_good = s.to_good, d->bad_loss = s.bad_loss, d->good_loss = s.good_loss;
    d->limit = limit, d->bad = 0;
    change_rate(d, s.bit_per_s);
    return offload(d, on);
}

static void stats(void) {
    for (int i = 0; i < 2; i++) {
        struct direction *d = &directions[i];
        printf("%s%llu %llu %llu %llu %lld %lld %lld", i ? " " : "", (unsigned long long)d->packets,
               (unsigned long long)d->bytes, (unsigned long long)d->lost, (unsigned long long)d->dropped,
               (long long)d->queued, (long long)d->late_sum, (long long)d->late_max);
    }
    putchar('\n');
}

/* 0: our owner is gone. */
static int control(void) {
    static char lines[4096];
    static size_t have;
    ssize_t got = read(0, lines + have, sizeof lines - 1 - have);
    if (got <= 0) return 0;
    lines[have += (size_t)got] = 0;
    char *line = lines, *end;
    for (; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        if (!strcmp(line, "stats")) stats();
        else puts(set(line) ? "error" : "ok");
    }
    have = strlen(line);
    memmove(lines, line, have + 1);
    fflush(stdout);
    return have < sizeof lines - 1;
}

static void wait_for_work(struct pollfd *files) {
    ns_t next = INT64_MAX;
    for (int i = 0; i < 2; i++)
        if (directions[i].head && directions[i].head->due < next) next = directions[i].head->due;
    struct timespec wait = {0, 0}, *timeout = NULL;
    if (next != INT64_MAX) {
        ns_t left = next - now_ns();
        if (left > 0) wait = (struct timespec){left / 1000000000LL, left % 1000000000LL};
        timeout = &wait;
    }
    ppoll(files, 3, timeout, NULL);
}

/* While packets keep coming, one wake-up serves several of them: a wake-up costs more than a packet. */
static void pause_briefly(void) {
    struct timespec pause = {0, PAUSE_NS};
    nanosleep(&pause, NULL);
}

int main(int count, char **words) {
    if (count != 4) return 2;
    struct pollfd files[3] = {{atoi(words[1]), POLLIN, 0}, {atoi(words[2]), POLLIN, 0}, {0, POLLIN, 0}};
    random_state = strtoull(words[3], NULL, 10);
    directions[0].from = directions[1].to = files[0].fd;
    directions[0].to = directions[1].from = files[1].fd;
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    for (int busy = 0;;) {
        if (busy > 1) pause_briefly();
        wait_for_work(files);
        if (files[2].revents && !control()) return 0;
        busy = 0;
        for (int rounds = 0, got = 1; got && rounds < 64; rounds++) { /* the control must have its turn too */
            got = 0;
            for (int i = 0; i < 2; i++) {
                deliver(&directions[i]);
                got += receive(&directions[i]);
            }
            busy += got;
        }
    }
}
