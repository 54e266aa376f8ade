/* random.h - chance from a seed: splitmix64 (Steele, Lea and Flood 2014). */
#ifndef TR_TESTS_SIM_RANDOM_H
#define TR_TESTS_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t state;
} sim_random;

static inline uint64_t sim_next(sim_random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A sequence of its own for each seed and use. Neighbouring seeds have nothing in common. */
static inline sim_random sim_seeded(uint64_t seed, uint64_t use)
{
    sim_random r = {.state = seed ^ use << 56};
    return (sim_random){.state = sim_next(&r)};
}

/* 0 .. n-1; 0 when n is 0. */
static inline uint64_t sim_below(sim_random *r, uint64_t n)
{
    return n == 0 ? 0 : sim_next(r) % n;
}

static inline bool sim_one_in(sim_random *r, uint64_t n)
{
    return sim_below(r, n) == 0;
}

#endif
