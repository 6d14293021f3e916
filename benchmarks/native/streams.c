/* Many streams at once: how late each server-sent event is when it arrives.
 *
 *     streams PORT PATH STREAMS RAMP WARM SECONDS INTERVAL_US BODY_FILE MARKER [HEADER]...
 *
 * Opens RAMP streams a second, each a POST of BODY_FILE on a connection of its own, until there are
 * STREAMS. Once each has had its first event it waits WARM seconds, prints a line "begin", and notes
 * for SECONDS seconds how long after its due time each event is read: event n of a stream is due n *
 * INTERVAL_US after the number behind MARKER, nanoseconds of CLOCK_MONOTONIC (upstream.c). Prints
 * one JSON object, then reads the streams to their ends: every one must end with [DONE] and the
 * last chunk, within GRACE seconds. Prints a second JSON object about that.
 *
 * SECONDS 0: opens them, prints "begin" and holds them until its standard input ends.
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
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

enum { HEAD_MAX = 8192, PIECE = 1 << 16, EVENTS = 256, AHEAD = 2, BEGIN_GRACE = 20, GRACE = 20 };
static const char DONE[] = "data: [DONE]";

typedef enum { IN_HEAD, SIZE, EXTENSION, DATA, DATA_END, OVER } State;

typedef struct {
    int fd;
    State state;
    char head[HEAD_MAX]; /* the answer's head, then its first events up to the stamp */
    size_t held;
    uint64_t chunk; /* bytes of it still to come */
    bool last_chunk;
    char line[sizeof DONE]; /* the begin of the line that is being read */
    size_t line_length;
    bool done_seen;
    uint64_t events; /* whole ones, the AHEAD without a due time too */
    uint64_t zero;
} Stream;

static struct {
    int poll, port;
    const char *marker;
    char *request;
    size_t request_length;
    uint64_t interval, from, until;
    size_t begun, ended, broken, bad;
    uint32_t *late_us;
    size_t late, room;
} run;

static void open_stream(Stream *s) {
    int one = 1, zero = 0;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)run.port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (s->fd < 0 || connect(s->fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (send(s->fd, run.request, run.request_length, MSG_NOSIGNAL) != (ssize_t)run.request_length)
        die("send");
    setsockopt(s->fd, IPPROTO_TCP, TCP_QUICKACK, &zero, sizeof zero); /* a segment less an event */
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    if (epoll_ctl(run.poll, EPOLL_CTL_ADD, s->fd, &event)) die("epoll_ctl");
}

static void note(uint64_t late) {
    if (run.late == run.room) {
        run.room = run.room ? run.room * 2 : 1 << 20;
        run.late_us = realloc(run.late_us, run.room * sizeof *run.late_us);
        if (!run.late_us) die("realloc");
    }
    run.late_us[run.late++] = (uint32_t)(late / 1000);
}

static void event_read(Stream *s, uint64_t at) {
    s->events++;
    if (s->events == AHEAD) run.begun++;
    if (s->events <= AHEAD || at < run.from || at >= run.until || !s->zero) return;
    uint64_t due = s->zero + (s->events - AHEAD) * run.interval;
    note(at > due ? at - due : 0);
}

/* Bytes of the body: whole lines tell events. Until the stamp was found they are kept. */
static void take_data(Stream *s, const char *data, size_t length, uint64_t at) {
    if (s->events < AHEAD) {
        size_t part = HEAD_MAX - 1 - s->held;
        if (part > length) part = length;
        memcpy(s->head + s->held, data, part);
        s->held += part;
        s->head[s->held] = 0;
        char *stamp = strstr(s->head, run.marker);
        if (stamp) s->zero = strtoull(stamp + strlen(run.marker), NULL, 10);
    }
    for (const char *end = data + length; data < end;) {
        const char *newline = memchr(data, '\n', (size_t)(end - data));
        size_t part = (size_t)((newline ? newline : end) - data);
        size_t room = sizeof DONE - 1 - s->line_length;
        if (room > part) room = part;
        memcpy(s->line + s->line_length, data, room);
        s->line_length += room;
        if (!newline) break;
        if (s->line_length == sizeof DONE - 1 && !memcmp(s->line, DONE, sizeof DONE - 1))
            s->done_seen = true;
        if (!s->line_length && !s->done_seen) event_read(s, at);
        s->line_length = 0;
        data = newline + 1;
    }
}

static int hex(char ch) {
    if (ch >= '0' && ch <= '9') return ch - '0';
    ch |= 32;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* False where the answer is none that can be read. */
static bool take(Stream *s, const char *data, size_t length, uint64_t at) {
    for (const char *end = data + length; data < end;) {
        switch (s->state) {
        case IN_HEAD: {
            size_t before = s->held, part = (size_t)(end - data);
            if (part > HEAD_MAX - 1 - before) return false;
            memcpy(s->head + before, data, part);
            s->head[before + part] = 0;
            char *blank = strstr(s->head, "\r\n\r\n");
            s->held += part;
            if (!blank) return true;
            blank[2] = 0;
            if (atoi(s->head + 9) != 200 || !strcasestr(s->head, "chunked")) return false;
            data += (size_t)(blank + 4 - s->head) - before;
            s->held = 0;
            s->state = SIZE;
            break;
        }
        case SIZE:
        case EXTENSION:
            if (*data == '\n') {
                s->last_chunk = s->chunk == 0;
                s->state = s->chunk ? DATA : DATA_END;
            } else if (s->state == SIZE && hex(*data) >= 0) {
                s->chunk = s->chunk * 16 + (unsigned)hex(*data);
            } else {
                s->state = EXTENSION;
            }
            data++;
            break;
        case DATA: {
            size_t part = (size_t)(end - data);
            if (part > s->chunk) part = s->chunk;
            take_data(s, data, part, at);
            data += part;
            s->chunk -= part;
            if (!s->chunk) s->state = DATA_END;
            break;
        }
        case DATA_END:
            if (*data++ == '\n') s->state = s->last_chunk ? OVER : SIZE;
            break;
        case OVER:
            return false;
        }
    }
    return true;
}

/* Trailers are none of our proxies': the last chunk is followed by an empty line. */
static bool read_more(Stream *s) {
    static char piece[PIECE];
    ssize_t got = recv(s->fd, piece, sizeof piece, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    return got > 0 && take(s, piece, (size_t)got, now()) && s->state != OVER;
}

static void finish(Stream *s) {
    run.ended++;
    if (s->state == IN_HEAD) {
        if (!run.bad++) fprintf(stderr, "%s: %.300s\n", "bad answer", s->head);
    } else if (s->state != OVER || !s->done_seen) {
        run.broken++;
    }
    close(s->fd);
}

static void serve(int timeout_ms) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(run.poll, events, EVENTS, timeout_ms);
    for (int i = 0; i < n; i++)
        if (!read_more(events[i].data.ptr)) finish(events[i].data.ptr);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static unsigned quantile_us(double q) {
    if (!run.late) return 0;
    size_t at = (size_t)(q * (double)run.late);
    return run.late_us[at < run.late ? at : run.late - 1];
}

static void report(double seconds) {
    qsort(run.late_us, run.late, sizeof *run.late_us, by_size);
    printf("{\"events\": %zu, \"per_second\": %.1f, \"p50_us\": %u, \"p90_us\": %u, "
           "\"p99_us\": %u, \"p999_us\": %u, \"max_us\": %u}\n",
           run.late, (double)run.late / seconds, quantile_us(0.5), quantile_us(0.9),
           quantile_us(0.99), quantile_us(0.999), quantile_us(1.0));
    fflush(stdout);
}

static void say_begin(void) {
    puts("begin");
    fflush(stdout);
}

static void make_request(const char *path, const char *body_path, char **headers, int count) {
    FILE *file = fopen(body_path, "rb");
    char *body = malloc(PIECE);
    size_t length = file && body ? fread(body, 1, PIECE, file) : 0, room = 2 * PIECE, n;
    if (!length || length == PIECE) die(body_path);
    fclose(file);
    run.request = malloc(room);
    n = (size_t)snprintf(run.request, room,
                         "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\n"
                         "content-type: application/json\r\ncontent-length: %zu\r\n",
                         path, run.port, length);
    for (int i = 0; i < count; i++)
        n += (size_t)snprintf(run.request + n, PIECE - n, "%s\r\n", headers[i]);
    n += (size_t)snprintf(run.request + n, PIECE - n, "\r\n");
    memcpy(run.request + n, body, length);
    run.request_length = n + length;
    free(body);
}

static void ramp_up(Stream *all, size_t count, double per_second) {
    uint64_t began = now(), end = began + (uint64_t)((double)count / per_second * 1e9);
    end += BEGIN_GRACE * SECOND;
    for (size_t opened = 0; run.begun < count && !run.ended && now() < end;) {
        double due = (double)(now() - began) / 1e9 * per_second;
        for (; opened < count && (double)opened <= due; opened++) open_stream(&all[opened]);
        serve(1);
    }
    if (run.begun < count) {
        fprintf(stderr, "only %zu of %zu streams have begun, %zu ended\n", run.begun, count,
                run.ended);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 10) {
        fprintf(stderr, "usage: %s PORT PATH STREAMS RAMP WARM SECONDS INTERVAL_US BODY_FILE "
                        "MARKER [HEADER]...\n", argv[0]);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run.port = atoi(argv[1]);
    size_t count = strtoull(argv[3], NULL, 10);
    double warm = atof(argv[5]), seconds = atof(argv[6]);
    run.interval = strtoull(argv[7], NULL, 10) * 1000;
    run.marker = argv[9];
    make_request(argv[2], argv[8], argv + 10, argc - 10);
    run.poll = epoll_create1(0);
    Stream *all = calloc(count, sizeof *all);
    if (!all || run.poll < 0) die("setup");
    ramp_up(all, count, atof(argv[4]));
    if (seconds <= 0) {
        say_begin();
        return getchar() == EOF ? 0 : 1;
    }
    for (uint64_t end = now() + (uint64_t)(warm * 1e9); now() < end;) serve(1);
    say_begin();
    run.from = now();
    run.until = run.from + (uint64_t)(seconds * 1e9);
    while (now() < run.until) serve(1);
    size_t ended = run.ended;
    report(seconds);
    for (uint64_t end = now() + GRACE * SECOND; run.ended < count && now() < end;) serve(10);
    printf("{\"whole\": %zu, \"broken\": %zu, \"bad\": %zu, \"early\": %zu}\n",
           run.ended - run.broken - run.bad, run.broken + count - run.ended, run.bad, ended);
    return 0;
}
