/* What the benchmarks' programs have in common. */
#ifndef COMMON_H
#define COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const uint64_t SECOND = 1000000000; /* in nanoseconds */

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* Nanoseconds of CLOCK_MONOTONIC. */
static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

#endif
