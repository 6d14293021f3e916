/* A fake engine that is faster than any proxy in front of it: it answers from a table.
 *
 *     upstream PORT [ADDRESSES]
 *
 * PUT PATH with a body   sets the JSON that every other method on PATH is answered with (200)
 * GET /bench/hits        {"PATH": calls, ...} since the start
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 32768, STORED_MAX = 1 << 20, ROUTES_MAX = 32, PATH_CHARS = 128, EVENTS = 64 };

typedef struct {
    char path[PATH_CHARS];
    char *answer; /* the whole response, head included */
    size_t length;
    unsigned long hits;
} Route;

typedef enum { IN_HEAD, IN_LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER } State;

typedef struct {
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
} Connection;

static Route routes[ROUTES_MAX];
static size_t route_count;

static void die(const char *what) {
    perror(what);
    exit(1);
}

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

static bool answer(Connection *c) {
    char small[256];
    bool sent;
    Route *route = find_route(c->path);
    if (c->put) {
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
    if (!c->stored && !(c->stored = malloc(STORED_MAX))) die("malloc");
    memcpy(c->stored + c->stored_length, data, length);
    c->stored_length += length;
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

static void forget(Connection *c) {
    close(c->fd);
    free(c->stored);
    free(c);
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
    for (;;) {
        int n = epoll_wait(poll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (c->listens)
                welcome(c->fd, poll);
            else if (!serve(c))
                forget(c);
        }
    }
}
