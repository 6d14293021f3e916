/* A fake engine that is faster than any proxy in front of it: it answers from a table.
 *
 *     upstream PORT [ADDRESSES]
 *
 * PUT PATH with a body   sets the JSON that every other method on PATH is answered with (200)
 * GET /bench/hits        {"PATH": calls, ...} since the start
 * PUT /bench/stream      has PATH answered by a stream of server-sent events. The body is a line
 *                            PATH INTERVAL_US TOGETHER
 *                        and events, each with its blank line: two to begin with, sent at once,
 *                        those that go round, one every INTERVAL_US, and the last three, sent when
 *                        the next such PUT ends the stream; an empty body only does that. With
 *                        INTERVAL_US 0 the first two are all that is sent, ever. Of each stream the
 *                        first digits that STAMP stands for are its zero in nanoseconds of
 *                        CLOCK_MONOTONIC: event n of those that go round is due at zero +
 *                        n * INTERVAL_US. So many streams as TOGETHER says have their events at the
 *                        same time, as one batch of an engine has; other zeros are spread evenly.
 *
 * Request bodies are read to their end (content-length or chunked) and dropped. One thread, epoll,
 * HTTP/1.1 with keep-alive, no pipelining. Binds 127.0.0.1, or as many addresses from there on, each
 * an engine of its own to who asks; ends with its parent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
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
#include <unistd.h>

#include "common.h"

enum { HEAD_MAX = 32768, STORED_MAX = 1 << 20, ROUTES_MAX = 32, PATH_CHARS = 128, EVENTS = 64 };
enum { SCRIPT_MAX = 4096, EVENT_ROOM = 8192, FIRST = 2, LAST = 3, TICK = 250000 /* ns */ };
static const char STAMP[] = "00000000000000000000";

typedef struct {
    char path[PATH_CHARS];
    char *answer; /* the whole response, head included */
    size_t length;
    unsigned long hits;
} Route;

typedef enum { IN_HEAD, IN_LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER } State;

typedef struct Connection {
    int fd;
    bool listens; /* then nothing else here is used */
    State state;
    char head[HEAD_MAX];
    size_t head_length;
    unsigned long long left; /* bytes of the body or of the chunk still to come */
    bool chunk_extension, line_empty, put, close_after;
    char path[PATH_CHARS];
    char *stored; /* a PUT's body */
    size_t stored_length;
    bool streaming;
    size_t slot, events; /* of its stream: when it is sent something, how much it was sent */
    struct Connection *next, **link; /* the slot's */
} Connection;

typedef struct {
    char *text; /* one chunk of the chunked coding */
    size_t length;
} Event;

static Route routes[ROUTES_MAX];
static size_t route_count;

/* What PUT /bench/stream set. A tick serves one slot; all slots are one interval. */
static struct {
    char path[PATH_CHARS];
    Event script[SCRIPT_MAX];
    size_t length, slots, together, begun;
    Connection **slot;
    uint64_t tick; /* the last one served, in ticks of CLOCK_MONOTONIC */
} stream;

static Route *find_route(const char *path) {
    for (size_t i = 0; i < route_count; i++)
        if (strcmp(routes[i].path, path) == 0) return &routes[i];
    return NULL;
}

static size_t respond(char *out, size_t room, const char *status, const char *body, size_t length) {
    int n = snprintf(out, room,
                     "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
                     status, length);
    if (n < 0 || (size_t)n + length > room) die("respond");
    memcpy(out + n, body, length);
    return (size_t)n + length;
}

static void set_route(const char *path, const char *body, size_t length) {
    Route *route = find_route(path);
    if (!route) {
        if (route_count == ROUTES_MAX) die("routes");
        route = &routes[route_count++];
        strcpy(route->path, path);
    }
    free(route->answer);
    route->answer = malloc(length + 256);
    if (!route->answer) die("malloc");
    route->length = respond(route->answer, length + 256, "200 OK", body, length);
}

/* Answers are small enough for a socket buffer: a short write means that the peer is gone. */
static bool send_all(int fd, const char *data, size_t length) {
    return send(fd, data, length, MSG_NOSIGNAL) == (ssize_t)length;
}

static bool send_hits(int fd) {
    char body[ROUTES_MAX * (PATH_CHARS + 32)], out[sizeof body + 256];
    size_t n = (size_t)snprintf(body, sizeof body, "{");
    for (size_t i = 0; i < route_count; i++)
        n += (size_t)snprintf(body + n, sizeof body - n, "%s\"%s\": %lu", i ? ", " : "",
                              routes[i].path, routes[i].hits);
    n += (size_t)snprintf(body + n, sizeof body - n, "}");
    return send_all(fd, out, respond(out, sizeof out, "200 OK", body, n));
}

/* The slot of the next stream: a step of the golden ratio, so that any number is spread evenly. */
static size_t next_slot(void) {
    double turns = (double)(stream.begun++ / stream.together) * 0.6180339887498949;
    return (size_t)((turns - (double)(size_t)turns) * (double)stream.slots);
}

static bool begin_stream(Connection *c) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                               "x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n";
    char out[sizeof head + 2 * (EVENT_ROOM + 64) + 1];
    size_t length = sizeof head - 1;
    memcpy(out, head, length);
    for (int i = 0; i < FIRST; i++) {
        memcpy(out + length, stream.script[i].text, stream.script[i].length);
        length += stream.script[i].length;
    }
    c->streaming = true;
    c->events = 0;
    c->link = NULL;
    if (stream.slots) {
        c->slot = next_slot();
        uint64_t first = stream.tick + 1; /* the first tick that serves this slot */
        first += (c->slot + stream.slots - first % stream.slots) % stream.slots;
        char *stamp = memmem(out, length, STAMP, sizeof STAMP - 1), digits[sizeof STAMP];
        sprintf(digits, "%020llu", (unsigned long long)((first - stream.slots) * TICK));
        if (stamp) memcpy(stamp, digits, sizeof STAMP - 1);
        c->next = stream.slot[c->slot];
        c->link = &stream.slot[c->slot];
        if (c->next) c->next->link = &c->next;
        *c->link = c;
    }
    return send_all(c->fd, out, length);
}

static void leave_slot(Connection *c) {
    if (c->streaming && c->link) {
        *c->link = c->next;
        if (c->next) c->next->link = c->link;
    }
    c->streaming = false;
}

static bool end_stream(Connection *c) {
    char out[LAST * (EVENT_ROOM + 64)];
    size_t length = 0;
    for (size_t i = stream.length - LAST; i < stream.length; i++) {
        memcpy(out + length, stream.script[i].text, stream.script[i].length);
        length += stream.script[i].length;
    }
    memcpy(out + length, "0\r\n\r\n", 5);
    leave_slot(c);
    return send_all(c->fd, out, length + 5) && !c->close_after;
}

/* Ends the streams that run. False where the text is none of the form above. */
static bool set_stream(const char *text) {
    unsigned long interval_us;
    int n = 0;
    for (size_t i = 0; i < stream.slots; i++)
        for (Connection *c; (c = stream.slot[i]);)
            if (!end_stream(c)) shutdown(c->fd, SHUT_RDWR);
    for (size_t i = 0; i < stream.length; i++) free(stream.script[i].text);
    free(stream.slot);
    memset(&stream, 0, sizeof stream);
    if (!*text) return true;
    if (sscanf(text, "%127s %lu %zu\n%n", stream.path, &interval_us, &stream.together, &n) != 3 ||
        !n || !stream.together)
        return false;
    for (const char *from = text + n, *end; (end = strstr(from, "\n\n")); from = end + 2) {
        size_t length = (size_t)(end + 2 - from);
        if (stream.length == SCRIPT_MAX || length > EVENT_ROOM) return false;
        Event *event = &stream.script[stream.length++];
        if (!(event->text = malloc(length + 32))) die("malloc");
        int head = sprintf(event->text, "%zx\r\n", length);
        memcpy(event->text + head, from, length);
        memcpy(event->text + head + length, "\r\n", 2);
        event->length = (size_t)head + length + 2;
    }
    stream.slots = interval_us * 1000 / TICK;
    stream.slot = calloc(stream.slots + 1, sizeof *stream.slot);
    if (!stream.slot) die("calloc");
    stream.tick = now() / TICK;
    return stream.length > FIRST + LAST;
}

/* The next event of one stream; false when its connection is over. */
static bool send_next(Connection *c) {
    size_t round = stream.length - FIRST - LAST;
    Event *event = &stream.script[FIRST + c->events++ % round];
    return send_all(c->fd, event->text, event->length);
}

static void forget(Connection *c) {
    leave_slot(c);
    close(c->fd);
    free(c->stored);
    free(c);
}

static void serve_streams(void) {
    uint64_t until = now() / TICK;
    while (stream.tick < until) {
        stream.tick++;
        for (Connection *c = stream.slot[stream.tick % stream.slots], *next; c; c = next) {
            next = c->next;
            if (!send_next(c)) forget(c);
        }
    }
}

static bool answer(Connection *c) {
    char small[256];
    bool sent;
    Route *route = find_route(c->path);
    if (c->put && strcmp(c->path, "/bench/stream") == 0) {
        bool fine = set_stream(c->stored_length ? c->stored : "");
        sent = send_all(c->fd, small, respond(small, sizeof small,
                                              fine ? "200 OK" : "400 Bad Request", "{}", 2));
    } else if (stream.length && strcmp(c->path, stream.path) == 0) {
        if (route) route->hits++;
        c->state = IN_HEAD;
        c->head_length = 0;
        return begin_stream(c);
    } else if (c->put) {
        set_route(c->path, c->stored, c->stored_length);
        sent = send_all(c->fd, small, respond(small, sizeof small, "200 OK", "{}", 2));
    } else if (strcmp(c->path, "/bench/hits") == 0) {
        sent = send_hits(c->fd);
    } else if (route) {
        route->hits++;
        sent = send_all(c->fd, route->answer, route->length);
    } else {
        sent = send_all(c->fd, small, respond(small, sizeof small, "404 Not Found", "{}", 2));
    }
    c->state = IN_HEAD;
    c->head_length = 0;
    c->stored_length = 0;
    return sent && !c->close_after;
}

static const char *header(const char *head, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line && line[2]; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, length) == 0 && line[2 + length] == ':')
            return line + 3 + length + strspn(line + 3 + length, " \t");
    return NULL;
}

/* True when the head made sense; sets the state for the body that follows. */
static bool read_head(Connection *c) {
    char *path = strchr(c->head, ' ');
    if (!path) return false;
    path++;
    size_t length = strcspn(path, " ?\r\n");
    if (length >= PATH_CHARS) return false;
    memcpy(c->path, path, length);
    c->path[length] = 0;
    c->put = strncmp(c->head, "PUT ", 4) == 0;
    const char *connection = header(c->head, "connection");
    c->close_after = connection && strncasecmp(connection, "close", 5) == 0;
    const char *coding = header(c->head, "transfer-encoding");
    const char *size = header(c->head, "content-length");
    c->left = 0;
    if (coding && strncasecmp(coding, "chunked", 7) == 0) {
        c->state = CHUNK_SIZE;
        c->chunk_extension = false;
    } else {
        c->state = IN_LENGTH;
        if (size) c->left = strtoull(size, NULL, 10);
    }
    const char *expect = header(c->head, "expect");
    return !expect || send_all(c->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

static bool store(Connection *c, const char *data, size_t length) {
    if (!c->put) return true;
    if (c->stored_length + length > STORED_MAX) return false;
    if (!c->stored && !(c->stored = malloc(STORED_MAX + 1))) die("malloc");
    memcpy(c->stored + c->stored_length, data, length);
    c->stored_length += length;
    c->stored[c->stored_length] = 0;
    return true;
}

static int hex(char ch) {
    if (ch >= '0' && ch <= '9') return ch - '0';
    ch |= 32;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* Takes what it can of data; the number of bytes taken, 0 when the connection is over. */
static size_t take(Connection *c, const char *data, size_t length) {
    size_t part = length;
    switch (c->state) {
    case IN_HEAD: {
        size_t before = c->head_length, room = HEAD_MAX - 1 - before;
        if (part > room) part = room;
        memcpy(c->head + before, data, part);
        c->head[before + part] = 0;
        size_t from = before > 3 ? before - 3 : 0;
        char *end = memmem(c->head + from, before + part - from, "\r\n\r\n", 4);
        if (!end) {
            c->head_length += part;
            return part; /* 0 when the head does not fit */
        }
        part = (size_t)(end + 4 - c->head) - before;
        end[2] = 0;
        if (!read_head(c) || (c->state == IN_LENGTH && c->left == 0 && !answer(c))) return 0;
        return part;
    }
    case IN_LENGTH:
        if (part > c->left) part = c->left;
        if (!store(c, data, part)) return 0;
        c->left -= part;
        if (c->left == 0 && !answer(c)) return 0;
        return part;
    case CHUNK_SIZE:
        if (*data == '\n') {
            c->state = c->left ? CHUNK_DATA : TRAILER;
            c->line_empty = true;
        } else if (*data == ';') {
            c->chunk_extension = true;
        } else if (!c->chunk_extension && hex(*data) >= 0) {
            c->left = c->left * 16 + (unsigned)hex(*data);
        }
        return 1;
    case CHUNK_DATA:
        if (part > c->left) part = c->left;
        if (!store(c, data, part)) return 0;
        c->left -= part;
        if (c->left == 0) c->state = CHUNK_END;
        return part;
    case CHUNK_END:
        if (*data == '\n') {
            c->state = CHUNK_SIZE;
            c->chunk_extension = false;
        }
        return 1;
    case TRAILER:
        if (*data != '\n') {
            if (*data != '\r') c->line_empty = false;
        } else if (c->line_empty) {
            if (!answer(c)) return 0;
        } else {
            c->line_empty = true;
        }
        return 1;
    }
    return 0;
}

static bool serve(Connection *c) {
    static char buffer[1 << 18];
    ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    for (size_t at = 0; at < (size_t)got;) {
        size_t taken = take(c, buffer + at, (size_t)got - at);
        if (taken == 0) return false;
        at += taken;
    }
    return true;
}

static int listen_on(unsigned address, int port) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    at.sin_addr.s_addr = htonl(address);
    if (fd < 0) die("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1024)) die("listen");
    return fd;
}

static void watch(int poll, int fd, bool listens) {
    Connection *c = calloc(1, sizeof *c);
    if (!c) die("calloc");
    c->fd = fd;
    c->listens = listens;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static void welcome(int listener, int poll) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    watch(poll, fd, false);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s PORT [ADDRESSES]\n", argv[0]);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int poll = epoll_create1(0);
    struct epoll_event events[EVENTS];
    if (poll < 0) die("epoll");
    unsigned addresses = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    for (unsigned i = 0; i < addresses; i++)
        watch(poll, listen_on(INADDR_LOOPBACK + i, atoi(argv[1])), true);
    const struct timespec tick = {.tv_nsec = TICK};
    for (;;) {
        int n = epoll_pwait2(poll, events, EVENTS, stream.slots ? &tick : NULL, NULL);
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (c->listens)
                welcome(c->fd, poll);
            else if (!serve(c))
                forget(c);
        }
        if (stream.slots) serve_streams();
    }
}
