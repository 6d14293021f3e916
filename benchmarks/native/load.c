/* Closed-loop HTTP/1.1 load: N connections, each sends the next request when its answer is whole.
 *
 *     load [-s STATUS] [-k KEYS] PORT PATH CONNECTIONS SECONDS BODY_FILE STAMP_OFFSET
 *          STAMP_DIGITS FIRST_STAMP MARKER [HEADER]...
 *
 * Every request differs: STAMP_DIGITS decimal digits at STAMP_OFFSET of the body are a number that
 * counts up from FIRST_STAMP, so no cache on the way can answer or count for another request. Every
 * answer is checked: status 200 or STATUS, whole by content-length or chunks, MARKER in the body.
 * With KEYS the first ######## in the headers is the stamp modulo KEYS, so that as many callers take
 * turns. After
 * SECONDS no request is started; those under way may end within GRACE seconds, so that calls can be
 * compared with the upstream's own count. Prints one JSON object.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common.h"

enum { ANSWER_MAX = 1 << 16, EVENTS = 64, GRACE = 60, KEY_DIGITS = 8 };

typedef struct {
    int fd;
    bool busy, writing;
    uint64_t started;
    char *front; /* head and the body up to the end of the stamp: the part that differs */
    size_t sent;
    char answer[ANSWER_MAX];
    size_t answer_length, body_at; /* body_at: 0 until the head is whole */
    bool chunked;
    uint64_t expected; /* content-length */
} Connection;

static struct {
    int poll, port, digits;
    const char *marker;
    char *head, *body;
    size_t head_length, body_length, stamp_offset, front_length, key_offset;
    uint64_t stamp, deadline, keys;
    int status;
    uint64_t calls, in_time, ok, bad_status, bad_body, broken;
    int first_bad_status;
    uint64_t *latencies;
    size_t room;
} run;

static void open_connection(Connection *c) {
    int one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)run.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(run.poll, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
}

static void want_write(Connection *c, bool want) {
    if (c->writing == want) return;
    struct epoll_event event = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(run.poll, EPOLL_CTL_MOD, c->fd, &event)) die("epoll_ctl");
    c->writing = want;
}

/* False when the connection broke. */
static bool write_more(Connection *c) {
    size_t rest_from = run.stamp_offset + (size_t)run.digits;
    size_t whole = run.front_length + run.body_length - rest_from;
    while (c->sent < whole) {
        struct iovec parts[2];
        int n = 0;
        if (c->sent < run.front_length)
            parts[n++] = (struct iovec){c->front + c->sent, run.front_length - c->sent};
        size_t rest = c->sent > run.front_length ? c->sent - run.front_length : 0;
        if (rest_from + rest < run.body_length)
            parts[n++] = (struct iovec){run.body + rest_from + rest,
                                        run.body_length - rest_from - rest};
        ssize_t put = writev(c->fd, parts, n);
        if (put < 0) {
            if (errno != EAGAIN) return false;
            want_write(c, true);
            return true;
        }
        c->sent += (size_t)put;
    }
    want_write(c, false);
    return true;
}

static void write_number(char *at, int width, uint64_t number) {
    char digits[32];
    snprintf(digits, sizeof digits, "%0*llu", width, (unsigned long long)number);
    memcpy(at, digits, (size_t)width);
}

static bool begin(Connection *c) {
    uint64_t stamp = run.stamp++;
    if (run.keys) write_number(c->front + run.key_offset, KEY_DIGITS, stamp % run.keys);
    write_number(c->front + run.head_length + run.stamp_offset, run.digits, stamp);
    c->sent = c->answer_length = c->body_at = 0;
    c->busy = true;
    c->started = now();
    run.calls++;
    return write_more(c);
}

static const char *header(const char *head, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line && line[2]; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, length) == 0 && line[2 + length] == ':')
            return line + 3 + length + strspn(line + 3 + length, " \t");
    return NULL;
}

/* 1 when the answer is whole, 0 when more is to come, -1 when it cannot be read. */
static int whole(Connection *c) {
    if (!c->body_at) {
        char *end = memmem(c->answer, c->answer_length, "\r\n\r\n", 4);
        if (!end) return 0;
        c->body_at = (size_t)(end + 4 - c->answer);
        end[2] = 0;
        const char *coding = header(c->answer, "transfer-encoding");
        const char *size = header(c->answer, "content-length");
        c->chunked = coding && strncasecmp(coding, "chunked", 7) == 0;
        if (!c->chunked && !size) return -1;
        c->expected = size ? strtoull(size, NULL, 10) : 0;
    }
    size_t have = c->answer_length - c->body_at;
    if (!c->chunked) return have >= c->expected;
    return have >= 5 && memcmp(c->answer + c->answer_length - 5, "0\r\n\r\n", 5) == 0;
}

static void check(Connection *c) {
    uint64_t at = now();
    int status = atoi(c->answer + 9);
    if (at <= run.deadline) run.in_time++;
    if (status != run.status) {
        if (!run.bad_status++) run.first_bad_status = status;
    } else if (!memmem(c->answer + c->body_at, c->answer_length - c->body_at, run.marker,
                       strlen(run.marker))) {
        run.bad_body++;
    } else {
        if (run.ok == run.room) {
            run.room = run.room ? run.room * 2 : 1 << 16;
            run.latencies = realloc(run.latencies, run.room * sizeof *run.latencies);
            if (!run.latencies) die("realloc");
        }
        run.latencies[run.ok++] = at - c->started;
    }
    c->busy = false;
}

static bool read_more(Connection *c) {
    ssize_t got = recv(c->fd, c->answer + c->answer_length, ANSWER_MAX - 1 - c->answer_length, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    c->answer_length += (size_t)got;
    c->answer[c->answer_length] = 0;
    int state = whole(c);
    if (state > 0) {
        const char *connection = header(c->answer, "connection");
        bool closing = connection && strncasecmp(connection, "close", 5) == 0;
        check(c);
        return !closing;
    }
    return state == 0;
}

static void reopen(Connection *c) {
    if (c->busy) run.broken++;
    c->busy = c->writing = false;
    close(c->fd);
    open_connection(c);
}

static void step(Connection *c, uint32_t events) {
    bool alive = true;
    if (events & EPOLLOUT) alive = write_more(c);
    if (alive && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) alive = read_more(c);
    if (!alive) reopen(c);
    if (!c->busy && now() < run.deadline && !begin(c)) reopen(c);
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double quantile_us(double q) {
    if (!run.ok) return 0;
    size_t at = (size_t)(q * (double)run.ok);
    return (double)run.latencies[at < run.ok ? at : run.ok - 1] / 1000.0;
}

static void report(double seconds) {
    qsort(run.latencies, run.ok, sizeof *run.latencies, by_size);
    printf("{\"calls\": %llu, \"ok\": %llu, \"bad_status\": %llu, \"first_bad_status\": %d, "
           "\"bad_body\": %llu, \"broken\": %llu, \"per_second\": %.2f, "
           "\"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           (unsigned long long)run.calls, (unsigned long long)run.ok,
           (unsigned long long)run.bad_status, run.first_bad_status,
           (unsigned long long)run.bad_body, (unsigned long long)run.broken,
           (double)run.in_time / seconds, quantile_us(0.5), quantile_us(0.9), quantile_us(0.99),
           quantile_us(1.0));
}

static void read_body(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) die(path);
    run.body_length = (size_t)ftell(file);
    rewind(file);
    run.body = malloc(run.body_length);
    if (!run.body || fread(run.body, 1, run.body_length, file) != run.body_length) die(path);
    fclose(file);
}

static void make_head(const char *path, char **headers, int count) {
    size_t room = 4096, n;
    run.head = malloc(room);
    n = (size_t)snprintf(run.head, room,
                         "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\n"
                         "content-type: application/json\r\ncontent-length: %zu\r\n",
                         path, run.port, run.body_length);
    for (int i = 0; i < count; i++)
        n += (size_t)snprintf(run.head + n, room - n, "%s\r\n", headers[i]);
    n += (size_t)snprintf(run.head + n, room - n, "\r\n");
    if (run.keys) {
        char *place = strstr(run.head, "########");
        if (!place) die("no place for a key");
        run.key_offset = (size_t)(place - run.head);
    }
    run.head_length = n;
    run.front_length = n + run.stamp_offset + (size_t)run.digits;
}

static Connection *connect_all(int count) {
    Connection *all = calloc((size_t)count, sizeof *all);
    if (!all) die("calloc");
    for (int i = 0; i < count; i++) {
        all[i].front = malloc(run.front_length);
        if (!all[i].front) die("malloc");
        memcpy(all[i].front, run.head, run.head_length);
        memcpy(all[i].front + run.head_length, run.body, run.front_length - run.head_length);
        open_connection(&all[i]);
    }
    return all;
}

static bool any_busy(const Connection *all, int count) {
    for (int i = 0; i < count; i++)
        if (all[i].busy) return true;
    return false;
}

int main(int argc, char **argv) {
    const char *program = argv[0];
    run.status = 200;
    for (int option; (option = getopt(argc, argv, "+s:k:")) != -1;) {
        if (option == 's') run.status = atoi(optarg);
        if (option == 'k') run.keys = strtoull(optarg, NULL, 10);
        if (option == '?') return 2;
    }
    argv += optind - 1;
    argc -= optind - 1;
    if (argc < 10) {
        fprintf(stderr, "usage: %s [-s STATUS] [-k KEYS] PORT PATH CONNECTIONS SECONDS BODY_FILE "
                        "STAMP_OFFSET STAMP_DIGITS FIRST_STAMP MARKER [HEADER]...\n", program);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run.port = atoi(argv[1]);
    int count = atoi(argv[3]);
    double seconds = atof(argv[4]);
    read_body(argv[5]);
    run.stamp_offset = strtoull(argv[6], NULL, 10);
    run.digits = atoi(argv[7]);
    run.stamp = strtoull(argv[8], NULL, 10);
    run.marker = argv[9];
    if (run.digits > 20 || run.stamp_offset + (size_t)run.digits > run.body_length) die("stamp");
    make_head(argv[2], argv + 10, argc - 10);
    run.poll = epoll_create1(0);
    Connection *all = connect_all(count);
    run.deadline = now() + (uint64_t)(seconds * 1e9);
    for (int i = 0; i < count; i++)
        if (!begin(&all[i])) reopen(&all[i]);
    struct epoll_event events[EVENTS];
    uint64_t end = run.deadline + GRACE * SECOND;
    while (now() < run.deadline || (any_busy(all, count) && now() < end)) {
        int n = epoll_wait(run.poll, events, EVENTS, 100);
        for (int i = 0; i < n; i++) step(events[i].data.ptr, events[i].events);
    }
    for (int i = 0; i < count; i++)
        if (all[i].busy) run.broken++;
    report(seconds);
    return 0;
}
