#include "core/model/ngram.h"

#include <inttypes.h>

/* Limits that keep the search for primes short and every product inside 64 bits. */
#define NGRAM_BASE_MAX  (1u << 28)
#define NGRAM_EMBED_MAX (1u << 20)
#define NGRAM_TAPS_MAX  16u

/* splitmix64's step and finaliser. */
static uint64_t ngram_mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool ngram_is_prime(uint64_t n)
{
    if (n < 2)
        return false;
    for (uint64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return false;
    return true;
}

static tr_status ngram_range(const char *file, uint32_t layer, const char *what, int64_t value,
                             int64_t min, int64_t max, tr_error *err)
{
    if (value >= min && value <= max)
        return TR_OK;
    return tr_fail(err, TR_E_INVALID,
                   "%s: layer %u: %s of the n-gram table is %" PRId64 ", expected %" PRId64
                   "..%" PRId64,
                   file, layer, what, value, min, max);
}

static tr_status ngram_check(const tr_ngram_spec *n, uint32_t vocab_size, const char *file,
                             uint32_t layer, tr_error *err)
{
    const struct {
        const char *what;
        int64_t value, min, max;
    } limits[] = {
        {"longest n-gram", n->size, 2, TR_NGRAM_SIZE_MAX},
        {"heads per length", n->heads, 1, TR_NGRAM_HEADS_MAX / (n->size > 1 ? n->size - 1 : 1)},
        {"width", n->embed_dim, 1, NGRAM_EMBED_MAX},
        {"convolution", n->conv_taps, 1, NGRAM_TAPS_MAX},
        {"first prime", n->base, 2, NGRAM_BASE_MAX},
        {"granule", n->divisor, 1, NGRAM_BASE_MAX},
        {"number of parts", n->parts, 1, TR_NGRAM_PARTS_MAX},
        {"separator", n->separator, 0, (int64_t)vocab_size - 1},
    };

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        tr_status status = ngram_range(file, layer, limits[i].what, limits[i].value, limits[i].min,
                                       limits[i].max, err);
        if (status != TR_OK)
            return status;
    }
    if (n->embed_dim % tr_ngram_heads(n) != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: layer %u: width of the n-gram table: %u heads do not divide %u", file,
                       layer, tr_ngram_heads(n), n->embed_dim);
    return TR_OK;
}

tr_status tr_ngram_derive(tr_ngram_spec *n, uint32_t vocab_size, const char *file, uint32_t layer,
                          tr_error *err)
{
    tr_status status = ngram_check(n, vocab_size, file, layer, err);
    if (status != TR_OK)
        return status;

    uint64_t half = (UINT64_C(0x7fffffffffffffff) / vocab_size) / 2;
    uint64_t seed = n->seed + UINT64_C(10007) * n->number;
    for (uint32_t j = 0; j < n->size; j++)
        n->multipliers[j] =
            2 * (ngram_mix(seed + UINT64_C(0x9e3779b97f4a7c15) * (j + 1)) % half) + 1;

    uint64_t rows = 0, prime = n->base;
    for (uint32_t h = 0; h < tr_ngram_heads(n); h++, prime++) {
        while (!ngram_is_prime(prime))
            prime++;
        n->moduli[h] = (uint32_t)prime;
        n->offsets[h] = rows;
        rows += prime;
    }
    n->rows = (rows + n->divisor - 1) / n->divisor * n->divisor;
    if (n->rows % n->parts != 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: layer %u: parts of the n-gram table: %u do not divide %" PRIu64 " rows",
                       file, layer, n->parts, n->rows);
    return ngram_range(file, layer, "number of rows", (int64_t)n->rows, 1, UINT32_MAX, err);
}

void tr_ngram_rows(const tr_ngram_spec *n, const int32_t *history, int32_t token, uint32_t *rows)
{
    uint64_t hash = (uint64_t)token * n->multipliers[0];
    bool separated = false;

    for (uint32_t j = 1; j < n->size; j++) {
        int32_t before = separated ? n->separator : history[j - 1];
        separated = before == n->separator;
        hash ^= (uint64_t)before * n->multipliers[j];
        for (uint32_t h = (j - 1) * n->heads; h < j * n->heads; h++)
            rows[h] = (uint32_t)(hash % n->moduli[h] + n->offsets[h]);
    }
}
